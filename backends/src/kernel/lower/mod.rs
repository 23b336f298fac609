//! From naga's module to scalars and byte offsets, or a refusal that names the construct and its place.

mod atomics;
mod expression;
mod math;
mod place;
mod statement;
mod types;

use std::collections::HashMap;

use naga::proc::Layouter;
use naga::valid::FunctionInfo;
use naga::{AddressSpace, Expression, GlobalVariable, Handle, StorageAccess, TypeInner};

use super::Refusal;
use super::ir::{self, BufferSlot, Kind, Program, Reg, ScalarSlot, Site, Space, Stmt, Value};
use super::parse::Parsed;
use types::Leaf;

type Result<T> = std::result::Result<T, Refusal>;

/// Lowers one entry point.
///
/// # Errors
/// The construct that is not covered, and where it is.
pub(crate) fn lower(parsed: &Parsed, entry: &str) -> Result<Program> {
    let names = || parsed.module.entry_points.iter().map(|point| point.name.as_str()).collect::<Vec<_>>();
    let (index, point) = (parsed.module.entry_points.iter().enumerate())
        .find(|(_, point)| point.name == entry && point.stage == naga::ShaderStage::Compute)
        .ok_or_else(|| {
            let what = format!("no compute entry point {entry:?}; there are: {}", names().join(", "));
            Refusal { what, site: Site::default(), is_malformed: true }
        })?;
    if let Some((handle, _)) = parsed.module.overrides.iter().next() {
        let site = parsed.site(parsed.module.overrides.get_span(handle));
        return Err(Refusal::uncovered("override declarations", site));
    }
    let mut layouts = Layouter::default();
    layouts.update(parsed.module.to_ctx()).map_err(|error| Refusal {
        what: error.to_string(),
        site: Site::default(),
        is_malformed: true,
    })?;
    let mut lowerer = Lowerer {
        parsed,
        layouts,
        globals: HashMap::new(),
        functions: HashMap::new(),
        program: Program::default(),
    };
    lowerer.program.entry = entry.to_owned();
    lowerer.program.group = point.workgroup_size;
    let info = parsed.info.get_entry_point(index);
    let prologue = lowerer.globals_of(info)?;
    let mut main = Body::new(&mut lowerer, &point.function, info)?;
    main.out.body.extend(prologue);
    main.entry_arguments()?;
    let main = main.finish()?;
    lowerer.program.functions.push(main);
    Ok(lowerer.program)
}

/// Where a global variable lies.
#[derive(Clone, Copy)]
struct Global {
    space: Space,
    offset: u32,
}

struct Lowerer<'p> {
    parsed: &'p Parsed,
    layouts: Layouter,
    globals: HashMap<Handle<GlobalVariable>, Global>,
    functions: HashMap<Handle<naga::Function>, u32>,
    program: Program,
}

impl<'p> Lowerer<'p> {
    fn inner(&self, ty: Handle<naga::Type>) -> &'p TypeInner {
        &self.parsed.module.types[ty].inner
    }

    /// Gives every global that the entry point uses its place; answers what sets private ones at the beginning.
    fn globals_of(&mut self, info: &FunctionInfo) -> Result<Vec<Stmt>> {
        let module = &self.parsed.module;
        let mut prologue = Vec::new();
        let used = module.global_variables.iter().filter(|(handle, _)| !info[*handle].is_empty());
        let mut used: Vec<_> = used.collect();
        used.sort_by_key(|(_, variable)| variable.binding.map_or(0, |binding| binding.binding));
        for (handle, variable) in used {
            let site = self.parsed.site(module.global_variables.get_span(handle));
            let global = match variable.space {
                AddressSpace::Storage { access } => self.buffer(variable, access, site)?,
                AddressSpace::Immediate => self.scalars(variable, site)?,
                AddressSpace::WorkGroup => {
                    let offset = self.allocate(variable.ty, site, |program| &mut program.group_bytes)?;
                    Global { space: Space::Group, offset }
                }
                AddressSpace::Private => {
                    let offset = self.allocate(variable.ty, site, |program| &mut program.private_bytes)?;
                    if let Some(init) = variable.init {
                        let values = self.constant(init, site)?;
                        for (leaf, value) in self.leaves(self.inner(variable.ty), site)?.iter().zip(values) {
                            prologue.push(Stmt::Store(leaf.place(Space::Private, offset, site), value));
                        }
                    }
                    Global { space: Space::Private, offset }
                }
                AddressSpace::Uniform => {
                    let what = "var<uniform> (numbers come in var<immediate>, vectors in var<storage>)";
                    return Err(Refusal::uncovered(what, site));
                }
                other => return Err(Refusal::uncovered(format!("variables in {other:?}"), site)),
            };
            self.globals.insert(handle, global);
        }
        Ok(prologue)
    }

    fn buffer(&mut self, variable: &GlobalVariable, access: StorageAccess, site: Site) -> Result<Global> {
        let name = variable.name.clone().unwrap_or_default();
        let binding = match variable.binding {
            Some(binding) if binding.group == 0 => binding.binding,
            _ => return Err(Refusal::uncovered(format!("{name:?} in a group other than 0"), site)),
        };
        let is_written = access.intersects(StorageAccess::STORE | StorageAccess::ATOMIC);
        let index = u32::try_from(self.program.buffers.len()).unwrap_or(u32::MAX);
        self.program.buffers.push(BufferSlot { name, binding, is_written });
        Ok(Global { space: Space::Buffer(index), offset: 0 })
    }

    fn scalars(&mut self, variable: &GlobalVariable, site: Site) -> Result<Global> {
        let parsed = self.parsed;
        let mut slot = |name: Option<&String>, leaves: &[Leaf], offset: u32| match leaves {
            [leaf] => {
                let name = name.cloned().unwrap_or_default();
                self.program.scalars.push(ScalarSlot { name, kind: leaf.kind, offset });
                Ok(())
            }
            _ => Err(Refusal::uncovered("members of var<immediate> that are no scalars", site)),
        };
        let layouts = &self.layouts;
        match &parsed.module.types[variable.ty].inner {
            TypeInner::Struct { members, .. } => {
                for member in members {
                    let inner = &parsed.module.types[member.ty].inner;
                    let leaves = types::leaves(&parsed.module, inner, site)?;
                    slot(member.name.as_ref(), &leaves, member.offset)?;
                }
            }
            inner => slot(variable.name.as_ref(), &types::leaves(&parsed.module, inner, site)?, 0)?,
        }
        self.program.scalars_bytes = layouts[variable.ty].size;
        Ok(Global { space: Space::Scalars, offset: 0 })
    }

    fn allocate(
        &mut self,
        ty: Handle<naga::Type>,
        site: Site,
        total: impl Fn(&mut Program) -> &mut u32,
    ) -> Result<u32> {
        let layout = self.layouts[ty];
        let total = total(&mut self.program);
        let offset = layout.alignment.round_up(*total);
        let end = offset.checked_add(layout.size).filter(|end| *end <= MEMORY_BYTES_MAX);
        *total = end.ok_or_else(|| Refusal::uncovered("a variable of more than 16 MiB", site))?;
        Ok(offset)
    }

    fn leaves(&self, inner: &TypeInner, site: Site) -> Result<Vec<Leaf>> {
        types::leaves(&self.parsed.module, inner, site)
    }

    /// The values of a constant expression of the module.
    fn constant(&self, handle: Handle<Expression>, site: Site) -> Result<Vec<Value>> {
        let module = &self.parsed.module;
        match &module.global_expressions[handle] {
            Expression::Literal(literal) => Ok(vec![types::literal(*literal, site)?]),
            Expression::Constant(constant) => self.constant(module.constants[*constant].init, site),
            Expression::ZeroValue(ty) => self.zero(self.inner(*ty), site),
            Expression::Compose { components, .. } => {
                let parts =
                    components.iter().map(|part| self.constant(*part, site)).collect::<Result<Vec<_>>>()?;
                Ok(parts.concat())
            }
            Expression::Splat { size, value } => {
                Ok(self.constant(*value, site)?.repeat(u32::from(*size) as usize))
            }
            other => Err(Refusal::uncovered(format!("the constant expression {other:?}"), site)),
        }
    }

    fn zero(&self, inner: &TypeInner, site: Site) -> Result<Vec<Value>> {
        Ok(self.leaves(inner, site)?.iter().map(|leaf| Value::Const(leaf.kind, 0)).collect())
    }

    /// The number of a lowered function.
    fn function(&mut self, handle: Handle<naga::Function>) -> Result<u32> {
        if let Some(&number) = self.functions.get(&handle) {
            return Ok(number);
        }
        let parsed = self.parsed;
        let lowered = Body::new(self, &parsed.module.functions[handle], &parsed.info[handle])?.finish()?;
        let number = u32::try_from(self.program.functions.len()).unwrap_or(u32::MAX);
        self.program.functions.push(lowered);
        self.functions.insert(handle, number);
        Ok(number)
    }
}

/// Most bytes of group, private or local memory.
const MEMORY_BYTES_MAX: u32 = 16 << 20;

/// Where a local variable lives.
#[derive(Clone)]
enum Local {
    Registers(Vec<Reg>),
    Memory(u32),
}

/// One function while it is lowered.
struct Body<'l, 'p> {
    lowerer: &'l mut Lowerer<'p>,
    function: &'p naga::Function,
    info: &'p FunctionInfo,
    out: ir::Function,
    values: HashMap<Handle<Expression>, Vec<Value>>,
    arguments: Vec<Vec<Value>>,
    locals: HashMap<Handle<naga::LocalVariable>, Local>,
    /// For each loop around: whether it is continued from within.
    continues: Vec<bool>,
    site: Site,
}

impl<'l, 'p> Body<'l, 'p> {
    fn new(
        lowerer: &'l mut Lowerer<'p>,
        function: &'p naga::Function,
        info: &'p FunctionInfo,
    ) -> Result<Self> {
        let mut body = Self {
            lowerer,
            function,
            info,
            out: ir::Function::default(),
            values: HashMap::new(),
            arguments: Vec::new(),
            locals: HashMap::new(),
            continues: Vec::new(),
            site: Site::default(),
        };
        body.parameters()?;
        Ok(body)
    }

    fn register(&mut self, kind: Kind) -> Reg {
        self.out.registers.push(kind);
        u32::try_from(self.out.registers.len() - 1).unwrap_or(Reg::MAX)
    }

    /// Sets a new register.
    fn set(&mut self, kind: Kind, op: ir::Op) -> Value {
        let register = self.register(kind);
        self.push(Stmt::Set(register, op));
        Value::Reg(register)
    }

    fn push(&mut self, stmt: Stmt) {
        self.out.body.push(stmt);
    }

    fn kind(&self, value: Value) -> Kind {
        match value {
            Value::Reg(register) => self.out.registers[register as usize],
            Value::Const(kind, _) => kind,
        }
    }

    fn refuse<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(Refusal::uncovered(what, self.site))
    }

    /// The type of an expression.
    fn type_of(&self, handle: Handle<Expression>) -> &'p TypeInner {
        self.info[handle].ty.inner_with(&self.lowerer.parsed.module.types)
    }

    /// Parameters of a function that others call; an entry point's come from the thread itself.
    fn parameters(&mut self) -> Result<()> {
        let is_entry = self
            .function
            .arguments
            .iter()
            .any(|argument| argument.binding.is_some() || self.is_struct_of_built_ins(argument.ty));
        if is_entry {
            return Ok(());
        }
        for argument in &self.function.arguments {
            let inner = self.lowerer.inner(argument.ty);
            let leaves = self.lowerer.leaves(inner, self.site)?;
            let values = leaves.iter().map(|leaf| Value::Reg(self.register(leaf.kind))).collect();
            self.arguments.push(values);
        }
        self.out.parameters = u32::try_from(self.out.registers.len()).unwrap_or(u32::MAX);
        if let Some(result) = &self.function.result {
            let leaves = self.lowerer.leaves(self.lowerer.inner(result.ty), self.site)?;
            self.out.results = leaves.iter().map(|leaf| leaf.kind).collect();
        }
        Ok(())
    }

    fn is_struct_of_built_ins(&self, ty: Handle<naga::Type>) -> bool {
        let TypeInner::Struct { members, .. } = self.lowerer.inner(ty) else { return false };
        members.iter().any(|member| member.binding.is_some())
    }

    fn entry_arguments(&mut self) -> Result<()> {
        for argument in &self.function.arguments {
            let values = match (&argument.binding, self.lowerer.inner(argument.ty)) {
                (Some(binding), _) => self.built_in(binding)?,
                (None, TypeInner::Struct { members, .. }) => {
                    let mut values = Vec::new();
                    for member in members {
                        match &member.binding {
                            Some(binding) => values.extend(self.built_in(binding)?),
                            None => return self.refuse("an argument of the entry point without a built-in"),
                        }
                    }
                    values
                }
                _ => return self.refuse("an argument of the entry point without a built-in"),
            };
            self.arguments.push(values);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<ir::Function> {
        self.local_variables()?;
        let function = self.function;
        self.block(&function.body)?;
        Ok(self.out)
    }
}
