//! Groups with barriers: the code runs all of a group's threads to a barrier, one after the other, then all on from
//! there. What a thread needs behind the barrier it leaves in a room of its own.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{Block, BlockArg, InstBuilder, MemFlagsData, Value, types};
use cranelift_frontend::{Switch, Variable};

use super::super::ir::Space;
use super::control::{Emitter, bytes_of, type_of};
use super::{APART, table};

/// The blocks and variables of the loop over a group's threads.
#[derive(Clone, Copy)]
pub(super) struct Together {
    /// Takes the number of the barrier that a thread came to, counted from 1; 0 for the end.
    came: Block,
    /// Where the current thread's kept registers, private and local memory begin.
    room: Variable,
    private: Variable,
    local: Variable,
}

/// What is known of the threads that have run this part.
struct Tally {
    /// The barrier behind which the threads began (0: the beginning), and which the first came to (−1: none did yet).
    behind: Variable,
    first: Variable,
    /// A barrier that one came to and another did not; 0 if there is none.
    apart: Variable,
}

impl Together {
    /// Writes the loop, and the ways in behind each barrier.
    pub(super) fn begin(emitter: &mut Emitter<'_>, rooms: Value) -> Self {
        let number = types::I32;
        let [behind, first, apart] = [0; 3].map(|_| emitter.builder.declare_var(number));
        let [room, private, local] = [0; 3].map(|_| emitter.builder.declare_var(types::I64));
        let [part, thread, came] = [0; 3].map(|_| emitter.builder.create_block());
        emitter.builder.append_block_param(came, number);
        let (together, tally) = (Self { came, room, private, local }, Tally { behind, first, apart });
        let zero = emitter.builder.ins().iconst(number, 0);
        emitter.builder.def_var(behind, zero);
        emitter.builder.ins().jump(part, &[]);

        emitter.builder.switch_to_block(part);
        let zero = emitter.builder.ins().iconst(number, 0);
        let none = emitter.builder.ins().iconst(number, i64::from((-1_i32).cast_unsigned()));
        emitter.id.into_iter().chain([apart]).for_each(|variable| emitter.builder.def_var(variable, zero));
        emitter.builder.def_var(first, none);
        let (privates, locals) = (emitter.word(table::PRIVATE), emitter.word(table::LOCAL));
        for (variable, value) in [(room, rooms), (private, privates), (local, locals)] {
            emitter.builder.def_var(variable, value);
        }
        emitter.builder.ins().jump(thread, &[]);

        together.enter(emitter, thread, behind);
        together.count(emitter, part, thread, &tally);
        together
    }

    /// The variable that says where the current thread's memory of that kind begins.
    pub(super) fn own_memory(&self, space: Space) -> Option<Variable> {
        match space {
            Space::Private => Some(self.private),
            Space::Local => Some(self.local),
            _ => None,
        }
    }

    /// A thread's way in: from the beginning, or from behind a barrier with the registers it kept there.
    fn enter(self, emitter: &mut Emitter<'_>, thread: Block, behind: Variable) {
        emitter.builder.switch_to_block(thread);
        let begin = emitter.builder.create_block();
        let behind = emitter.builder.use_var(behind);
        let mut ways = Switch::new();
        let landings: Vec<_> = emitter.barriers.iter().map(|(at, _)| at + 1).collect();
        let landings: Vec<_> = landings.into_iter().map(|at| (at, emitter.builder.create_block())).collect();
        for (number, (_, landing)) in (1_u128..).zip(&landings) {
            ways.set_entry(number, *landing);
        }
        ways.emit(&mut emitter.builder, behind, begin);
        for (number, (at, landing)) in landings.into_iter().enumerate() {
            emitter.builder.switch_to_block(landing);
            let room = emitter.builder.use_var(self.room);
            for (slot, register) in emitter.kept[number].clone().into_iter().enumerate() {
                let ty = type_of(emitter.code.registers[register as usize]);
                let value = emitter.builder.ins().load(ty, MemFlagsData::trusted(), room, bytes_of(slot));
                emitter.builder.def_var(emitter.variables[register as usize], value);
            }
            let block = emitter.blocks[&at];
            emitter.builder.ins().jump(block, &[]);
        }
        emitter.builder.switch_to_block(begin);
        let own = emitter.builder.use_var(self.private);
        emitter.clear_at(own, 0, emitter.program.private_bytes);
        let first = emitter.blocks[&0];
        emitter.builder.ins().jump(first, &[]);
    }

    /// Behind a thread: notes where it came to, then the next thread; behind the last, the next part or the end.
    fn count(self, emitter: &mut Emitter<'_>, part: Block, thread: Block, tally: &Tally) {
        emitter.builder.switch_to_block(self.came);
        let came = emitter.builder.block_params(self.came)[0];
        let first = emitter.builder.use_var(tally.first);
        let is_none = emitter.builder.ins().icmp_imm_s(IntCC::Equal, first, -1);
        let first = emitter.builder.ins().select(is_none, came, first);
        emitter.builder.def_var(tally.first, first);
        // As the interpreter tells it: the first thread's barrier, or the other's where the first has ended.
        let has_ended = emitter.builder.ins().icmp_imm_u(IntCC::Equal, first, 0);
        let either = emitter.builder.ins().select(has_ended, came, first);
        let apart = emitter.builder.use_var(tally.apart);
        let is_told = emitter.builder.ins().icmp_imm_u(IntCC::NotEqual, apart, 0);
        let is_same = emitter.builder.ins().icmp(IntCC::Equal, came, first);
        let stays = emitter.builder.ins().bor(is_told, is_same);
        let apart = emitter.builder.ins().select(stays, apart, either);
        emitter.builder.def_var(tally.apart, apart);
        self.step(emitter);
        let [x, y, z] = emitter.program.group;
        for (side, width) in [x, y, z].into_iter().enumerate() {
            // A side of one thread is stepped over.
            if width == 1 && side < 2 {
                continue;
            }
            let place = emitter.builder.use_var(emitter.id[side]);
            let next = emitter.builder.ins().iadd_imm_s(place, 1);
            emitter.builder.def_var(emitter.id[side], next);
            let is_inside = emitter.builder.ins().icmp_imm_u(IntCC::UnsignedLessThan, next, i64::from(width));
            let over = emitter.builder.create_block();
            emitter.builder.ins().brif(is_inside, thread, &[], over, &[]);
            emitter.builder.switch_to_block(over);
            let zero = emitter.builder.ins().iconst(types::I32, 0);
            emitter.builder.def_var(emitter.id[side], zero);
        }
        self.go_on(emitter, part, tally);
    }

    /// To the next thread's memory.
    fn step(self, emitter: &mut Emitter<'_>) {
        let kept = emitter.kept.iter().map(Vec::len).max().unwrap_or(0);
        let words = |bytes: u32| i64::from(bytes.div_ceil(8)) * 8;
        let steps = [
            (self.room, i64::from(bytes_of(kept))),
            (self.private, words(emitter.program.private_bytes)),
            (self.local, words(emitter.code.local_bytes)),
        ];
        for (variable, step) in steps {
            let at = emitter.builder.use_var(variable);
            let next = emitter.builder.ins().iadd_imm_s(at, step);
            emitter.builder.def_var(variable, next);
        }
    }

    fn go_on(self, emitter: &mut Emitter<'_>, part: Block, tally: &Tally) {
        let [is_apart, together, on, end] = [0; 4].map(|_| emitter.builder.create_block());
        let apart = emitter.builder.use_var(tally.apart);
        emitter.builder.ins().brif(apart, is_apart, &[], together, &[]);

        emitter.builder.switch_to_block(is_apart);
        let number = emitter.builder.ins().uextend(types::I64, apart);
        let place = bytes_of(table::FAULT_PLACE);
        emitter.builder.ins().store(MemFlagsData::trusted(), number, emitter.words, place);
        emitter.leave(APART);

        emitter.builder.switch_to_block(together);
        let first = emitter.builder.use_var(tally.first);
        emitter.builder.ins().brif(first, on, &[], end, &[]);
        emitter.builder.switch_to_block(on);
        emitter.builder.def_var(tally.behind, first);
        emitter.builder.ins().jump(part, &[]);
        emitter.builder.switch_to_block(end);
        emitter.leave(0);
    }

    /// A thread comes to a barrier, by its position among them.
    pub(super) fn wait(self, emitter: &mut Emitter<'_>, barrier: usize) {
        let room = emitter.builder.use_var(self.room);
        for (slot, register) in emitter.kept[barrier].clone().into_iter().enumerate() {
            let value = emitter.get(register);
            emitter.builder.ins().store(MemFlagsData::trusted(), value, room, bytes_of(slot));
        }
        self.arrive(emitter, i64::try_from(barrier + 1).unwrap_or(0));
    }

    /// A thread ends.
    pub(super) fn end(self, emitter: &mut Emitter<'_>) {
        self.arrive(emitter, 0);
    }

    fn arrive(self, emitter: &mut Emitter<'_>, number: i64) {
        let number = emitter.builder.ins().iconst(types::I32, number);
        emitter.builder.ins().jump(self.came, &[BlockArg::Value(number)]);
    }
}
