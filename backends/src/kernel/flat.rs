//! A program as one list of instructions: calls put in place, jumps instead of blocks, constants in registers.

use super::Refusal;
use super::ir::{
    AtomicOp, Binary, Function, Kind, Limit, Op, Own, Place, Program, Reg, Site, Space, Stmt, Unary, Value,
};

/// A kernel of more instructions than this is refused: calls are put in place, which can grow without bound.
const INSTRUCTIONS_MAX: usize = 1 << 20;

/// An instruction. Operands are registers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Instr {
    Copy {
        to: Reg,
        a: Reg,
    },
    Unary {
        op: Unary,
        kind: Kind,
        to: Reg,
        a: Reg,
    },
    Binary {
        op: Binary,
        kind: Kind,
        to: Reg,
        a: Reg,
        b: Reg,
    },
    Fma {
        kind: Kind,
        to: Reg,
        a: Reg,
        b: Reg,
        c: Reg,
    },
    Select {
        to: Reg,
        condition: Reg,
        a: Reg,
        b: Reg,
    },
    Convert {
        from: Kind,
        kind: Kind,
        to: Reg,
        a: Reg,
    },
    /// Places are numbers in [`Code::places`].
    Load {
        to: Reg,
        place: u32,
    },
    Store {
        place: u32,
        a: Reg,
    },
    Atomic {
        place: u32,
        op: AtomicOp,
        a: Reg,
        old: Reg,
    },
    CompareExchange {
        place: u32,
        expected: Reg,
        a: Reg,
        old: Reg,
        exchanged: Reg,
    },
    Length {
        to: Reg,
        buffer: u32,
        offset: u32,
        stride: u32,
    },
    Own {
        to: Reg,
        own: Own,
    },
    Jump(u32),
    JumpIf(Reg, u32),
    JumpUnless(Reg, u32),
    Barrier(Site),
    /// Zeroes a part of local memory.
    Zero {
        offset: u32,
        len: u32,
    },
    End,
}

/// A place whose indices are registers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FlatPlace {
    pub(crate) space: Space,
    pub(crate) offset: u32,
    pub(crate) steps: Vec<(Reg, u32, Limit)>,
    pub(crate) kind: Kind,
    /// Read or written by atomic operations elsewhere.
    #[cfg_attr(not(feature = "jit"), allow(dead_code, reason = "groups run in turn there"))]
    pub(crate) is_atomic: bool,
    pub(crate) site: Site,
}

/// A kernel as instructions.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Code {
    pub(crate) instructions: Vec<Instr>,
    pub(crate) places: Vec<FlatPlace>,
    pub(crate) registers: Vec<Kind>,
    /// Registers that hold the same bits throughout.
    pub(crate) constants: Vec<(Reg, u64)>,
    pub(crate) local_bytes: u32,
}

impl Code {
    /// Flattens a program.
    ///
    /// # Errors
    /// If it becomes too long.
    pub(crate) fn of(program: &Program) -> Result<Self, Refusal> {
        let mut flattener = Flattener { program, code: Self::default() };
        if let Some(main) = program.main() {
            flattener.function(main, &[], &[])?;
        }
        flattener.push(Instr::End)?;
        Ok(flattener.code)
    }
}

struct Flattener<'p> {
    program: &'p Program,
    code: Code,
}

/// A function where it is put in place.
struct Frame {
    first_register: Reg,
    first_local: u32,
    results: Vec<Reg>,
    /// Jumps to its end.
    returns: Vec<usize>,
    loops: Vec<Around>,
}

/// What a `break` or `continue` belongs to.
struct Around {
    is_loop: bool,
    breaks: Vec<usize>,
    continues: Vec<usize>,
}

impl Around {
    fn new(is_loop: bool) -> Self {
        Self { is_loop, breaks: Vec::new(), continues: Vec::new() }
    }
}

fn short(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl Flattener<'_> {
    fn push(&mut self, instruction: Instr) -> Result<usize, Refusal> {
        if self.code.instructions.len() >= INSTRUCTIONS_MAX {
            let what = format!("a kernel of more than {INSTRUCTIONS_MAX} instructions");
            return Err(Refusal::uncovered(what, Site::default()));
        }
        self.code.instructions.push(instruction);
        Ok(self.code.instructions.len() - 1)
    }

    fn here(&self) -> u32 {
        short(self.code.instructions.len())
    }

    /// Lets jumps end here.
    fn land(&mut self, jumps: &[usize]) {
        let here = self.here();
        for &jump in jumps {
            match &mut self.code.instructions[jump] {
                Instr::Jump(target) | Instr::JumpIf(_, target) | Instr::JumpUnless(_, target) => {
                    *target = here;
                }
                _ => {}
            }
        }
    }

    fn constant(&mut self, kind: Kind, bits: u64) -> Reg {
        let known = self
            .code
            .constants
            .iter()
            .find(|(register, known)| *known == bits && self.code.registers[*register as usize] == kind);
        if let Some((register, _)) = known {
            return *register;
        }
        self.code.registers.push(kind);
        let register = short(self.code.registers.len() - 1);
        self.code.constants.push((register, bits));
        register
    }

    fn operand(&mut self, frame: &Frame, value: Value) -> Reg {
        match value {
            Value::Reg(register) => frame.first_register + register,
            Value::Const(kind, bits) => self.constant(kind, bits),
        }
    }

    fn kind(&self, register: Reg) -> Kind {
        self.code.registers[register as usize]
    }

    fn place(&mut self, frame: &Frame, place: &Place) -> u32 {
        let moved = if place.space == Space::Local { frame.first_local } else { 0 };
        let steps = place.steps.iter();
        let steps = steps.map(|step| (self.operand(frame, step.index), step.stride, step.limit)).collect();
        let (space, kind, is_atomic, site) = (place.space, place.kind, place.is_atomic, place.site);
        self.code.places.push(FlatPlace {
            space,
            offset: place.offset + moved,
            steps,
            kind,
            is_atomic,
            site,
        });
        short(self.code.places.len() - 1)
    }

    fn function(&mut self, function: &Function, arguments: &[Reg], results: &[Reg]) -> Result<(), Refusal> {
        let first_register = short(self.code.registers.len());
        self.code.registers.extend(&function.registers);
        let first_local = self.code.local_bytes.next_multiple_of(16);
        self.code.local_bytes = first_local + function.local_bytes;
        let mut frame = Frame {
            first_register,
            first_local,
            results: results.to_vec(),
            returns: Vec::new(),
            loops: Vec::new(),
        };
        for (position, argument) in (0_u32..).zip(arguments) {
            self.push(Instr::Copy { to: first_register + position, a: *argument })?;
        }
        if function.local_bytes > 0 {
            self.push(Instr::Zero { offset: first_local, len: function.local_bytes })?;
        }
        self.block(&mut frame, &function.body)?;
        self.land(&frame.returns);
        Ok(())
    }

    fn block(&mut self, frame: &mut Frame, block: &[Stmt]) -> Result<(), Refusal> {
        block.iter().try_for_each(|stmt| self.stmt(frame, stmt))
    }

    fn stmt(&mut self, frame: &mut Frame, stmt: &Stmt) -> Result<(), Refusal> {
        match stmt {
            Stmt::Set(register, op) => {
                let to = frame.first_register + register;
                let instruction = self.op(frame, to, op);
                self.push(instruction)?;
            }
            Stmt::Store(place, value) => {
                let a = self.operand(frame, *value);
                let place = self.place(frame, place);
                self.push(Instr::Store { place, a })?;
            }
            Stmt::Atomic { place, op, value, old } => {
                let a = self.operand(frame, *value);
                let old = match old {
                    Some(old) => frame.first_register + old,
                    None => {
                        self.code.registers.push(place.kind);
                        short(self.code.registers.len() - 1)
                    }
                };
                let place = self.place(frame, place);
                self.push(Instr::Atomic { place, op: *op, a, old })?;
            }
            Stmt::CompareExchange { place, expected, value, old, exchanged } => {
                let (expected, a) = (self.operand(frame, *expected), self.operand(frame, *value));
                let (old, exchanged) = (frame.first_register + old, frame.first_register + exchanged);
                let place = self.place(frame, place);
                self.push(Instr::CompareExchange { place, expected, a, old, exchanged })?;
            }
            Stmt::If { condition, accept, reject } => {
                let condition = self.operand(frame, *condition);
                let over = self.push(Instr::JumpUnless(condition, 0))?;
                self.block(frame, accept)?;
                let end = self.push(Instr::Jump(0))?;
                self.land(&[over]);
                self.block(frame, reject)?;
                self.land(&[end]);
            }
            Stmt::Switch { selector, cases } => self.switch(frame, *selector, cases)?,
            Stmt::Loop { body, continuing, break_if, .. } => {
                let top = self.here();
                frame.loops.push(Around::new(true));
                self.block(frame, body)?;
                let mut around = frame.loops.pop().unwrap_or_else(|| Around::new(true));
                self.land(&around.continues);
                self.block(frame, continuing)?;
                if let Some(condition) = break_if {
                    let condition = self.operand(frame, *condition);
                    around.breaks.push(self.push(Instr::JumpIf(condition, 0))?);
                }
                self.push(Instr::Jump(top))?;
                self.land(&around.breaks);
            }
            Stmt::Break => {
                let jump = self.push(Instr::Jump(0))?;
                if let Some(around) = frame.loops.last_mut() {
                    around.breaks.push(jump);
                }
            }
            Stmt::Continue => {
                let jump = self.push(Instr::Jump(0))?;
                if let Some(around) = frame.loops.iter_mut().rev().find(|around| around.is_loop) {
                    around.continues.push(jump);
                }
            }
            Stmt::Return(values) => {
                for (value, to) in values.iter().zip(frame.results.clone()) {
                    let a = self.operand(frame, *value);
                    self.push(Instr::Copy { to, a })?;
                }
                let jump = self.push(Instr::Jump(0))?;
                frame.returns.push(jump);
            }
            Stmt::Barrier(site) => _ = self.push(Instr::Barrier(*site))?,
            Stmt::Call { function, arguments, results } => {
                let arguments: Vec<_> = arguments.iter().map(|value| self.operand(frame, *value)).collect();
                let results: Vec<_> =
                    results.iter().map(|register| frame.first_register + register).collect();
                let program = self.program;
                self.function(&program.functions[*function as usize], &arguments, &results)?;
            }
        }
        Ok(())
    }

    fn switch(
        &mut self,
        frame: &mut Frame,
        selector: Value,
        cases: &[super::ir::Case],
    ) -> Result<(), Refusal> {
        let selector = self.operand(frame, selector);
        let kind = self.kind(selector);
        let mut jumps = vec![Vec::new(); cases.len()];
        for (case, jumps) in cases.iter().zip(&mut jumps) {
            for value in &case.values {
                self.code.registers.push(Kind::Bool);
                let to = short(self.code.registers.len() - 1);
                let b = self.constant(kind, u64::from(*value));
                self.push(Instr::Binary { op: Binary::Equal, kind, to, a: selector, b })?;
                jumps.push(self.push(Instr::JumpIf(to, 0))?);
            }
        }
        let mut around = Around::new(false);
        let otherwise = self.push(Instr::Jump(0))?;
        match cases.iter().position(|case| case.is_default) {
            Some(position) => jumps[position].push(otherwise),
            None => around.breaks.push(otherwise),
        }
        frame.loops.push(around);
        for (case, jumps) in cases.iter().zip(&jumps) {
            self.land(jumps);
            self.block(frame, &case.body)?;
            let jump = self.push(Instr::Jump(0))?;
            if let Some(around) = frame.loops.last_mut() {
                around.breaks.push(jump);
            }
        }
        if let Some(around) = frame.loops.pop() {
            self.land(&around.breaks);
        }
        Ok(())
    }

    fn op(&mut self, frame: &Frame, to: Reg, op: &Op) -> Instr {
        let mut operand = |value: &Value| self.operand(frame, *value);
        match op {
            // A register holds the bits, whatever they stand for.
            Op::Copy(value) | Op::Bits(value) => Instr::Copy { to, a: operand(value) },
            Op::Unary(op, value) => {
                let a = operand(value);
                Instr::Unary { op: *op, kind: self.kind(a), to, a }
            }
            Op::Binary(op, left, right) => {
                let (a, b) = (operand(left), operand(right));
                Instr::Binary { op: *op, kind: self.kind(a), to, a, b }
            }
            Op::Fma(x, y, z) => {
                let (a, b, c) = (operand(x), operand(y), operand(z));
                Instr::Fma { kind: self.kind(a), to, a, b, c }
            }
            Op::Select(condition, accept, reject) => {
                let (condition, a, b) = (operand(condition), operand(accept), operand(reject));
                Instr::Select { to, condition, a, b }
            }
            Op::Convert(value) => {
                let a = operand(value);
                Instr::Convert { from: self.kind(a), kind: self.kind(to), to, a }
            }
            Op::Load(place) => {
                let place = self.place(frame, place);
                Instr::Load { to, place }
            }
            Op::Length { buffer, offset, stride } => {
                Instr::Length { to, buffer: *buffer, offset: *offset, stride: *stride }
            }
            Op::Own(own) => Instr::Own { to, own: *own },
        }
    }
}
