//! Blocks, jumps, and the ends of threads. Without barriers a row of threads runs through the code one after the other;
//! with barriers, the whole group runs in it ([`super::together`]).

use std::collections::BTreeMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{AbiParam, Block, BlockArg, InstBuilder, MemFlagsData, SigRef, Signature, Type};
use cranelift_codegen::ir::{Value, immediates::Ieee32, immediates::Ieee64, types};
use cranelift_codegen::isa::TargetFrontendConfig;
use cranelift_frontend::{FunctionBuilder, Variable};

use super::super::flat::{Code, Instr};
use super::super::ir::{Kind, Own, Program, Reg, Site, Space};
use super::super::run::Runnable;
use super::table::{self, Table};
use super::together::Together;
use super::{FAULT, live};

/// One function while it is written.
pub(super) struct Emitter<'a> {
    pub(super) builder: FunctionBuilder<'a>,
    pub(super) code: &'a Code,
    pub(super) program: &'a Program,
    pub(super) table: &'a Table,
    frame: TargetFrontendConfig,
    pub(super) variables: Vec<Variable>,
    constants: BTreeMap<Reg, u64>,
    /// Blocks by the instruction that they begin with.
    pub(super) blocks: BTreeMap<usize, Block>,
    pub(super) barriers: Vec<(usize, Site)>,
    /// Registers that a thread keeps over each barrier.
    pub(super) kept: Vec<Vec<Reg>>,
    /// Where a row's next thread begins.
    row: Option<Block>,
    /// How a group runs through barriers.
    together: Option<Together>,
    pub(super) words: Value,
    /// The thread's place in its group.
    pub(super) id: [Variable; 3],
    fault: Block,
    pub(super) evaluate: SigRef,
    zero: SigRef,
}

pub(super) fn type_of(kind: Kind) -> Type {
    match kind {
        Kind::Bool => types::I8,
        Kind::I32 | Kind::U32 => types::I32,
        Kind::F16 | Kind::F32 => types::F32,
        Kind::I64 | Kind::U64 => types::I64,
        Kind::F64 => types::F64,
    }
}

/// Clears memory.
///
/// # Safety
/// The bytes are there, for the caller alone.
unsafe extern "C" fn zero(to: *mut u8, len: u64) {
    // SAFETY: as the caller promises; a length that is compiled in fits, for the memory is there.
    unsafe { to.write_bytes(0, usize::try_from(len).unwrap_or(0)) };
}

/// The word's distance from the table's beginning.
pub(super) fn bytes_of(word: usize) -> i32 {
    i32::try_from(word * 8).unwrap_or(i32::MAX)
}

impl<'a> Emitter<'a> {
    pub(super) fn new(
        mut builder: FunctionBuilder<'a>,
        runnable: &'a Runnable,
        table: &'a Table,
        frame: TargetFrontendConfig,
    ) -> Self {
        let (code, program) = (&runnable.code, &runnable.program);
        let entry = builder.create_block();
        builder.append_block_params_for_function_params(entry);
        builder.switch_to_block(entry);
        let given = builder.block_params(entry).to_vec();
        let id = [0; 3].map(|_| builder.declare_var(types::I32));
        let zero = builder.ins().iconst(types::I32, 0);
        for (side, value) in id.into_iter().zip([zero, given[2], given[3]]) {
            builder.def_var(side, value);
        }
        let signature = |parameters: &[Type], result: Option<Type>| Signature {
            params: parameters.iter().copied().map(AbiParam::new).collect(),
            returns: result.into_iter().map(AbiParam::new).collect(),
            call_conv: frame.default_call_conv,
        };
        let long = types::I64;
        let evaluate = builder.import_signature(signature(&[long, long, long, long], Some(long)));
        let zero = builder.import_signature(signature(&[long, long], None));
        let variables = code.registers.iter().map(|kind| builder.declare_var(type_of(*kind))).collect();
        let fault = builder.create_block();
        builder.append_block_param(fault, types::I32);
        builder.append_block_param(fault, types::I64);
        builder.set_cold_block(fault);
        let barriers =
            code.instructions.iter().enumerate().filter_map(|(at, instruction)| match instruction {
                Instr::Barrier(site) => Some((at, *site)),
                _ => None,
            });
        let mut emitter = Self {
            code,
            program,
            table,
            frame,
            variables,
            constants: code.constants.iter().copied().collect(),
            blocks: BTreeMap::new(),
            barriers: barriers.collect(),
            kept: Vec::new(),
            row: None,
            together: None,
            words: given[0],
            id,
            fault,
            evaluate,
            zero,
            builder,
        };
        emitter.find_blocks();
        let first = emitter.blocks[&0];
        if emitter.barriers.is_empty() {
            let begin = emitter.builder.create_block();
            emitter.builder.ins().jump(begin, &[]);
            emitter.builder.switch_to_block(begin);
            emitter.clear(Space::Private, 0, emitter.program.private_bytes);
            emitter.builder.ins().jump(first, &[]);
            emitter.row = Some(begin);
        } else {
            emitter.kept = emitter.kept_over_barriers();
            emitter.together = Some(Together::begin(&mut emitter, given[1]));
        }
        emitter
    }

    fn kept_over_barriers(&self) -> Vec<Vec<Reg>> {
        let starts: Vec<usize> = self.blocks.keys().copied().collect();
        let behind: Vec<usize> = self.barriers.iter().map(|(at, _)| at + 1).collect();
        let mut kept = live::before(self.code, &starts, &behind);
        // A constant needs no room.
        kept.iter_mut().for_each(|kept| kept.retain(|register| !self.constants.contains_key(register)));
        kept
    }

    /// Writes everything; answers the barriers' sites and how many registers are kept over them.
    pub(super) fn emit(mut self) -> (Vec<Site>, usize) {
        let mut is_open = false;
        for (at, instruction) in self.code.instructions.iter().enumerate() {
            if let Some(&block) = self.blocks.get(&at) {
                if is_open {
                    self.builder.ins().jump(block, &[]);
                }
                self.builder.switch_to_block(block);
            }
            is_open = self.instruction(at, instruction);
        }
        self.fail();
        self.builder.seal_all_blocks();
        self.builder.finalize(self.frame);
        let kept = self.kept.iter().map(Vec::len).max().unwrap_or(0);
        (self.barriers.iter().map(|(_, site)| *site).collect(), kept)
    }

    fn find_blocks(&mut self) {
        let mut starts = vec![0];
        for (at, instruction) in self.code.instructions.iter().enumerate() {
            match *instruction {
                Instr::Jump(to) | Instr::JumpIf(_, to) | Instr::JumpUnless(_, to) => {
                    starts.extend([to as usize, at + 1]);
                }
                Instr::Barrier(_) | Instr::End => starts.push(at + 1),
                _ => {}
            }
        }
        for start in starts {
            if start < self.code.instructions.len() && !self.blocks.contains_key(&start) {
                let block = self.builder.create_block();
                self.blocks.insert(start, block);
            }
        }
    }

    fn clear(&mut self, space: Space, offset: u32, len: u32) {
        let base = self.base(space);
        self.clear_at(base, offset, len);
    }

    pub(super) fn clear_at(&mut self, base: Value, offset: u32, len: u32) {
        if len == 0 {
            return;
        }
        let to = self.builder.ins().iadd_imm_s(base, i64::from(offset));
        let len = self.builder.ins().iconst(types::I64, i64::from(len));
        let helper: unsafe extern "C" fn(*mut u8, u64) = zero;
        let helper = self.address(helper as *const u8);
        self.builder.ins().call_indirect(self.zero, helper, &[to, len]);
    }

    pub(super) fn address(&mut self, of: *const u8) -> Value {
        self.builder.ins().iconst(types::I64, (of.expose_provenance() as u64).cast_signed())
    }

    /// Where a memory begins.
    pub(super) fn base(&mut self, space: Space) -> Value {
        let own = self.together.as_ref().and_then(|together| together.own_memory(space));
        match own {
            Some(own) => self.builder.use_var(own),
            None => self.word(Table::base(space)),
        }
    }

    /// A word of the table that does not change while the code runs.
    pub(super) fn word(&mut self, index: usize) -> Value {
        let flags = MemFlagsData::trusted().with_readonly();
        self.builder.ins().load(types::I64, flags, self.words, bytes_of(index))
    }

    pub(super) fn get(&mut self, register: Reg) -> Value {
        match self.constants.get(&register) {
            Some(&bits) => self.constant(self.code.registers[register as usize], bits),
            None => self.builder.use_var(self.variables[register as usize]),
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "the low bits are the number")]
    pub(super) fn constant(&mut self, kind: Kind, bits: u64) -> Value {
        match type_of(kind) {
            types::F32 => self.builder.ins().f32const(Ieee32::with_bits(bits as u32)),
            types::F64 => self.builder.ins().f64const(Ieee64::with_bits(bits)),
            types::I64 => self.builder.ins().iconst(types::I64, bits.cast_signed()),
            ty => self.builder.ins().iconst(ty, i64::from(bits as u32)),
        }
    }

    /// Sets a register to a value of its kind, or to the same bits in another.
    pub(super) fn set(&mut self, register: Reg, value: Value) {
        let ty = type_of(self.code.registers[register as usize]);
        let value = self.as_type(value, ty);
        self.builder.def_var(self.variables[register as usize], value);
    }

    /// The same bits as another type of the same size.
    pub(super) fn as_type(&mut self, value: Value, ty: Type) -> Value {
        let from = self.builder.func.dfg.value_type(value);
        if from == ty { value } else { self.builder.ins().bitcast(ty, MemFlagsData::new(), value) }
    }

    /// Goes on if `is_inside`, else leaves with what was outside.
    pub(super) fn check(&mut self, is_inside: Value, place: u32, offset: Value) {
        let on = self.builder.create_block();
        let place = self.builder.ins().iconst(types::I32, i64::from(place));
        let told = [BlockArg::Value(place), BlockArg::Value(offset)];
        self.builder.ins().brif(is_inside, on, &[], self.fault, &told);
        self.builder.switch_to_block(on);
    }

    fn fail(&mut self) {
        self.builder.switch_to_block(self.fault);
        let told = self.builder.block_params(self.fault).to_vec();
        let flags = MemFlagsData::trusted();
        let place = self.builder.ins().uextend(types::I64, told[0]);
        self.builder.ins().store(flags, place, self.words, bytes_of(table::FAULT_PLACE));
        self.builder.ins().store(flags, told[1], self.words, bytes_of(table::FAULT_OFFSET));
        self.leave(FAULT);
    }

    pub(super) fn leave(&mut self, answer: i32) {
        let answer = self.builder.ins().iconst(types::I32, i64::from(answer.cast_unsigned()));
        self.builder.ins().return_(&[answer]);
    }

    /// Answers whether the block goes on behind it.
    fn instruction(&mut self, at: usize, instruction: &'a Instr) -> bool {
        match *instruction {
            Instr::Jump(to) => {
                let to = self.blocks[&(to as usize)];
                self.builder.ins().jump(to, &[]);
                return false;
            }
            Instr::JumpIf(condition, to) => self.branch(condition, to as usize, at + 1),
            Instr::JumpUnless(condition, to) => self.branch(condition, at + 1, to as usize),
            Instr::Barrier(_) => self.wait(at),
            Instr::End => self.end(),
            Instr::Zero { offset, len } => {
                self.clear(Space::Local, offset, len);
                return true;
            }
            Instr::Load { to, place } => {
                let value = self.load(place);
                self.set(to, value);
                return true;
            }
            Instr::Store { place, a } => {
                self.store(place, a);
                return true;
            }
            Instr::Atomic { place, op, a, old } => {
                self.atomic(place, op, a, old);
                return true;
            }
            Instr::CompareExchange { place, expected, a, old, exchanged } => {
                self.compare_exchange(place, (expected, a), (old, exchanged));
                return true;
            }
            Instr::Length { to, buffer, offset, stride } => {
                let length = self.word(self.table.length((buffer, offset, stride)));
                let length = self.builder.ins().ireduce(types::I32, length);
                self.set(to, length);
                return true;
            }
            Instr::Own { to, own } => {
                let value = self.own(own);
                self.set(to, value);
                return true;
            }
            _ => {
                self.operation(instruction);
                return true;
            }
        }
        false
    }

    fn branch(&mut self, condition: Reg, accept: usize, reject: usize) {
        let condition = self.get(condition);
        let (accept, reject) = (self.blocks[&accept], self.blocks[&reject]);
        self.builder.ins().brif(condition, accept, &[], reject, &[]);
    }

    fn wait(&mut self, at: usize) {
        let number = self.barriers.iter().position(|(barrier, _)| *barrier == at);
        if let (Some(number), Some(together)) = (number, self.together) {
            together.wait(self, number);
        }
    }

    fn end(&mut self) {
        match (self.row, self.together) {
            (Some(begin), _) => self.next_of_row(begin),
            (None, Some(together)) => together.end(self),
            (None, None) => self.leave(0),
        }
    }

    fn next_of_row(&mut self, begin: Block) {
        let done = self.builder.create_block();
        let x = self.builder.use_var(self.id[0]);
        let next = self.builder.ins().iadd_imm_s(x, 1);
        self.builder.def_var(self.id[0], next);
        let width = i64::from(self.program.group[0]);
        let is_inside = self.builder.ins().icmp_imm_u(IntCC::UnsignedLessThan, next, width);
        self.builder.ins().brif(is_inside, begin, &[], done, &[]);
        self.builder.switch_to_block(done);
        self.leave(0);
    }

    fn own(&mut self, own: Own) -> Value {
        let word = match own {
            Own::LocalId(side) => {
                let side = self.id[usize::from(side).min(2)];
                return self.builder.use_var(side);
            }
            Own::GroupId(side) => table::GROUP_ID + usize::from(side),
            Own::GroupCount(side) => table::GROUP_COUNT + usize::from(side),
        };
        let word = self.word(word);
        self.builder.ins().ireduce(types::I32, word)
    }
}
