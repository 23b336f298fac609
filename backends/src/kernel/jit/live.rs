//! Which registers are still needed: those that some way from here reads before it sets them.

use super::super::flat::{Code, Instr};
use super::super::ir::Reg;
use super::operation;

/// A set of registers.
#[derive(Clone, PartialEq, Eq)]
struct Set(Vec<u64>);

impl Set {
    fn new(registers: usize) -> Self {
        Self(vec![0; registers.div_ceil(64)])
    }

    fn add(&mut self, register: Reg) {
        self.0[register as usize / 64] |= 1 << (register % 64);
    }

    fn has(&self, register: Reg) -> bool {
        self.0[register as usize / 64] >> (register % 64) & 1 == 1
    }
}

/// What a block does to registers, and where it goes on.
struct Part {
    /// Read before they are set.
    read: Set,
    set: Set,
    next: Vec<usize>,
}

/// The registers that are needed before each of the instructions `at`, which begin blocks; in rising order. `starts` are
/// the first instructions of all blocks in rising order: blocks end where the next begins.
pub(super) fn before(code: &Code, starts: &[usize], at: &[usize]) -> Vec<Vec<Reg>> {
    let count = code.registers.len();
    let ends = starts.iter().skip(1).copied().chain([code.instructions.len()]);
    let parts: Vec<Part> =
        starts.iter().zip(ends).map(|(start, end)| part(code, *start, end, starts)).collect();
    let mut needed: Vec<Set> = parts.iter().map(|part| part.read.clone()).collect();
    let mut has_changed = true;
    while has_changed {
        has_changed = false;
        for (number, part) in parts.iter().enumerate().rev() {
            for word in 0..count.div_ceil(64) {
                let behind = part.next.iter().fold(0, |all, next| all | needed[*next].0[word]);
                let more = needed[number].0[word] | behind & !part.set.0[word];
                has_changed |= more != needed[number].0[word];
                needed[number].0[word] = more;
            }
        }
    }
    let registers = |set: &Set| (0..).take(count).filter(|register| set.has(*register)).collect();
    at.iter()
        .map(|at| starts.binary_search(at).map_or_else(|_| Vec::new(), |at| registers(&needed[at])))
        .collect()
}

fn part(code: &Code, start: usize, end: usize, starts: &[usize]) -> Part {
    let (mut read, mut set) = (Set::new(code.registers.len()), Set::new(code.registers.len()));
    for instruction in &code.instructions[start..end] {
        operation::reads(instruction, code, |register| {
            if !set.has(register) {
                read.add(register);
            }
        });
        operation::sets(instruction, |register| set.add(register));
    }
    let next = match code.instructions.get(end.wrapping_sub(1)) {
        Some(Instr::Jump(to)) => vec![*to as usize],
        Some(Instr::JumpIf(_, to) | Instr::JumpUnless(_, to)) => vec![*to as usize, end],
        Some(Instr::End) | None => Vec::new(),
        Some(_) => vec![end],
    };
    let next = next.iter().filter_map(|at| starts.binary_search(at).ok()).collect();
    Part { read, set, next }
}

#[cfg(test)]
mod tests {
    use super::super::super::ir::Kind;
    use super::*;

    /// 0 and 1 are counted in a loop around a barrier, 2 is set and read between barriers alone.
    #[test]
    fn what_is_read_behind_a_barrier_is_needed_there() {
        let copy = |to, a| Instr::Copy { to, a };
        let instructions = vec![
            copy(0, 1),
            Instr::Barrier(Default::default()),
            copy(2, 0),
            copy(3, 2),
            Instr::JumpIf(3, 1),
            copy(4, 1),
            Instr::End,
        ];
        let code = Code { instructions, registers: vec![Kind::U32; 130], ..Code::default() };
        assert_eq!(before(&code, &[0, 1, 2, 5], &[2, 5]), [vec![0, 1], vec![1]]);
    }
}
