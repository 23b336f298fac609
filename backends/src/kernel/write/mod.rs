//! Programs as C, in the dialects of OpenCL, CUDA and HIP.
//!
//! A kernel's parameters are, in this order: a pointer for each buffer; the length of each buffer in bytes,
//! 64 bits; the scalars, halves as the 32 bits of their code. In OpenCL C, where a buffer is no pointer that could
//! be moved, each pointer is followed by the offset of the first byte, 64 bits.

mod dialect;
mod op;
mod place;
mod prelude;

use std::fmt::Write;

use super::ir::{Function, Kind, Program, Reg, Stmt, Value};
pub(crate) use dialect::Dialect;

/// Whether indices are compared with the length of what they index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Checks {
    /// What lies outside reads as zero and is not written.
    On,
    /// The kernel is known to stay inside.
    Off,
}

/// What the kernel's function is called.
pub(crate) fn entry_name(program: &Program) -> String {
    format!("spoc_{}", program.entry)
}

/// Writes a program.
pub(crate) fn write(program: &Program, dialect: Dialect, checks: Checks) -> String {
    let uses_wide = program.uses(Kind::I64) || program.uses(Kind::U64);
    let [x, y, z] = program.group;
    let mut out = format!("#define SIZE_X {x}\n#define SIZE_Y {y}\n#define SIZE_Z {z}\n");
    out.push_str(&dialect.header(program.uses(Kind::F64)));
    out.push_str(&prelude::text(uses_wide));
    let mut writer = Writer { program, dialect, checks, registers: Vec::new(), out };
    let last = program.functions.len().saturating_sub(1);
    for (number, function) in program.functions.iter().enumerate() {
        writer.function(function, if number == last { None } else { Some(number) });
    }
    writer.out
}

struct Writer<'p> {
    program: &'p Program,
    dialect: Dialect,
    checks: Checks,
    /// Kinds of the registers of the function that is being written.
    registers: Vec<Kind>,
    out: String,
}

/// The name of a kind.
fn c_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool | Kind::U32 => "u32",
        Kind::I32 => "i32",
        Kind::F32 | Kind::F16 => "f32",
        Kind::I64 => "i64",
        Kind::U64 => "u64",
        Kind::F64 => "f64",
    }
}

/// A constant by its bits.
fn constant(kind: Kind, bits: u64) -> String {
    match kind {
        Kind::Bool | Kind::U32 => format!("{bits}u"),
        Kind::I32 => format!("((i32){bits}u)"),
        Kind::F32 | Kind::F16 => format!("AS_F32(0x{bits:08x}u)"),
        Kind::U64 => format!("((u64)0x{bits:x}ul)"),
        Kind::I64 => format!("((i64)(u64)0x{bits:x}ul)"),
        Kind::F64 => format!("AS_F64(0x{bits:016x}ul)"),
    }
}

fn value(value: Value) -> String {
    match value {
        Value::Reg(register) => format!("r{register}"),
        Value::Const(kind, bits) => constant(kind, bits),
    }
}

impl Writer<'_> {
    fn line(&mut self, depth: usize, text: &str) {
        let _ = writeln!(self.out, "{:1$}{text}", "", depth * 4);
    }

    /// Parameters that every function has.
    fn shared_parameters(&self) -> Vec<String> {
        let buffers = 0..self.program.buffers.len();
        let mut list: Vec<_> = buffers.clone().map(|number| format!("GLOBAL u8* b{number}")).collect();
        list.extend(self.numbers());
        if self.program.group_bytes > 0 {
            list.push("GROUP u8* group_memory".to_owned());
        }
        if self.program.private_bytes > 0 {
            list.push("u8* private_memory".to_owned());
        }
        list
    }

    fn kernel_parameters(&self) -> Vec<String> {
        let buffer = |number| match self.dialect {
            Dialect::OpenCl => format!("GLOBAL u8* m{number}, u64 a{number}"),
            Dialect::Cuda | Dialect::Hip => format!("GLOBAL u8* b{number}"),
        };
        let mut list: Vec<_> = (0..self.program.buffers.len()).map(buffer).collect();
        list.extend(self.numbers());
        list
    }

    /// Lengths of buffers, and scalars.
    fn numbers(&self) -> Vec<String> {
        let lengths = (0..self.program.buffers.len()).map(|number| format!("u64 n{number}"));
        let mut list: Vec<_> = lengths.collect();
        for (number, scalar) in self.program.scalars.iter().enumerate() {
            let kind = if scalar.kind == Kind::F16 { Kind::U32 } else { scalar.kind };
            list.push(format!("{} s{number}", c_type(kind)));
        }
        list
    }

    /// What those are called.
    fn shared_arguments(&self) -> Vec<String> {
        let name = |parameter: &String| parameter.rsplit(' ').next().unwrap_or_default().to_owned();
        self.shared_parameters().iter().map(name).collect()
    }

    fn function(&mut self, function: &Function, number: Option<usize>) {
        self.registers.clone_from(&function.registers);
        let kind = |register: Reg| c_type(function.registers[register as usize]);
        match number {
            Some(number) => {
                let mut list = self.shared_parameters();
                list.extend(
                    (0..function.parameters).map(|register| format!("{} r{register}", kind(register))),
                );
                let results = function.results.iter().enumerate();
                list.extend(results.map(|(place, kind)| format!("{}* o{place}", c_type(*kind))));
                let head = format!("DEVICE void f{number}({}) {{", list.join(", "));
                self.line(0, &head);
            }
            None => {
                let (name, parameters) = (entry_name(self.program), self.kernel_parameters());
                self.line(0, &format!("KERNEL void {name}({}) {{", parameters.join(", ")));
                if self.dialect == Dialect::OpenCl {
                    for number in 0..self.program.buffers.len() {
                        self.line(1, &format!("GLOBAL u8* b{number} = m{number} + a{number};"));
                    }
                }
                self.memory_of_group();
            }
        }
        for register in function.parameters..u32::try_from(function.registers.len()).unwrap_or(0) {
            let declaration = format!("{} r{register};", kind(register));
            self.line(1, &declaration);
        }
        self.zeroed("local_memory", function.local_bytes);
        self.block(1, &function.body);
        self.line(0, "}");
    }

    /// A thread's own memory, zero.
    fn zeroed(&mut self, name: &str, len_bytes: u32) {
        if len_bytes > 0 {
            let words = len_bytes.div_ceil(8);
            self.line(1, &format!("u64 {name}_[{words}];"));
            self.line(1, &format!("u8* {name} = (u8*){name}_;"));
            self.line(1, &format!("for (u32 i = 0; i < {}u; i++) {name}[i] = 0;", words * 8));
        }
    }

    fn memory_of_group(&mut self) {
        self.zeroed("private_memory", self.program.private_bytes);
        let len_bytes = self.program.group_bytes;
        if len_bytes > 0 {
            let words = len_bytes.div_ceil(8);
            self.line(1, &format!("GROUP_MEMORY u64 group_words[{words}];"));
            self.line(1, "GROUP u8* group_memory = (GROUP u8*)group_words;");
            self.line(1, "u32 own = (LOCAL_ID(2) * SIZE_Y + LOCAL_ID(1)) * SIZE_X + LOCAL_ID(0);");
            let total = words * 8;
            self.line(
                1,
                &format!(
                    "for (u32 i = own; i < {total}u; i += SIZE_X * SIZE_Y * SIZE_Z) group_memory[i] = 0;"
                ),
            );
            self.line(1, "BARRIER();");
        }
    }

    fn block(&mut self, depth: usize, block: &[Stmt]) {
        for stmt in block {
            self.stmt(depth, stmt);
        }
    }

    fn stmt(&mut self, depth: usize, stmt: &Stmt) {
        match stmt {
            Stmt::Set(register, op) => {
                let text = format!("r{register} = {};", self.op(op, *register));
                self.line(depth, &text);
            }
            Stmt::Store(place, stored) => {
                let text = self.store(place, *stored);
                self.line(depth, &text);
            }
            Stmt::Atomic { place, op, value: stored, old } => {
                let text = self.atomic(place, *op, *stored, *old);
                self.line(depth, &text);
            }
            Stmt::CompareExchange { place, expected, value: stored, old, exchanged } => {
                let text = self.compare_exchange(place, *expected, *stored, *old);
                self.line(depth, &text);
                self.line(depth, &format!("r{exchanged} = r{old} == {};", value(*expected)));
            }
            Stmt::If { condition, accept, reject } => {
                self.line(depth, &format!("if ({}) {{", value(*condition)));
                self.block(depth + 1, accept);
                if !reject.is_empty() {
                    self.line(depth, "} else {");
                    self.block(depth + 1, reject);
                }
                self.line(depth, "}");
            }
            Stmt::Switch { selector, cases } => {
                self.line(depth, &format!("switch ((u32){}) {{", value(*selector)));
                for case in cases {
                    let labels = case.values.iter().map(|value| format!("case {value}u: "));
                    let mut label: String = labels.collect();
                    if case.is_default {
                        label.push_str("default: ");
                    }
                    label.push('{');
                    self.line(depth, &label);
                    self.block(depth + 1, &case.body);
                    self.line(depth + 1, "break;");
                    self.line(depth, "}");
                }
                self.line(depth, "}");
            }
            Stmt::Loop { body, continuing, break_if, has_continue } => {
                self.repeat(depth, body, continuing, *break_if, *has_continue);
            }
            Stmt::Break => self.line(depth, "break;"),
            Stmt::Continue => self.line(depth, "continue;"),
            Stmt::Return(values) => {
                for (place, returned) in values.iter().enumerate() {
                    self.line(depth, &format!("*o{place} = {};", value(*returned)));
                }
                self.line(depth, "return;");
            }
            Stmt::Barrier(_) => self.line(depth, "BARRIER();"),
            Stmt::Call { function, arguments, results } => {
                let mut list = self.shared_arguments();
                list.extend(arguments.iter().map(|argument| value(*argument)));
                list.extend(results.iter().map(|register| format!("&r{register}")));
                self.line(depth, &format!("f{function}({});", list.join(", ")));
            }
        }
    }

    /// A loop. What comes after the body stands before it, behind a gate, where the body continues from within.
    fn repeat(
        &mut self,
        depth: usize,
        body: &[Stmt],
        continuing: &[Stmt],
        break_if: Option<Value>,
        has_continue: bool,
    ) {
        let is_gated = has_continue && (!continuing.is_empty() || break_if.is_some());
        let after = |writer: &mut Self, depth: usize| {
            writer.block(depth, continuing);
            if let Some(condition) = break_if {
                writer.line(depth, &format!("if ({}) break;", value(condition)));
            }
        };
        self.line(depth, if is_gated { "for (u32 again = 0;; again = 1) {" } else { "for (;;) {" });
        if is_gated {
            self.line(depth + 1, "if (again) {");
            after(self, depth + 2);
            self.line(depth + 1, "}");
            self.block(depth + 1, body);
        } else {
            self.block(depth + 1, body);
            after(self, depth + 1);
        }
        self.line(depth, "}");
    }
}
