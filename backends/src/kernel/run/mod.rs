//! The interpreter: runs a kernel's instructions one by one, group after group.
//!
//! A group's threads run in turn, each until it ends or waits at a barrier; once all wait, they go on. So what
//! a barrier orders is ordered, and what nothing orders happens in the order of the threads.

pub(crate) mod eval;
mod memory;

use super::flat::{Code, Instr};
use super::ir::{Own, Program, Site};
pub(crate) use memory::{Buffer, Fault, Memory};

/// A kernel, ready to run.
#[derive(Debug)]
pub(crate) struct Runnable {
    pub(crate) program: Program,
    pub(crate) code: Code,
    has_barriers: bool,
}

/// One thread of a group.
struct Thread {
    registers: Vec<u64>,
    private: Vec<u8>,
    local: Vec<u8>,
    local_id: [u32; 3],
    at: usize,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Waiting(Site),
    Ended,
}

impl Runnable {
    pub(crate) fn new(program: Program) -> Result<Self, super::Refusal> {
        let code = Code::of(&program)?;
        let has_barriers = program.has_barriers();
        Ok(Self { program, code, has_barriers })
    }

    /// Runs every group.
    ///
    /// # Errors
    /// The access that is out of bounds, or the barrier that not every thread reaches.
    pub(crate) fn run(&self, groups: [u32; 3], memory: &mut Memory) -> Result<(), Fault> {
        let [x, y, z] = self.program.group;
        let ids = (0..z).flat_map(|z| (0..y).flat_map(move |y| (0..x).map(move |x| [x, y, z])));
        let ids: Vec<_> = ids.collect();
        let count = if self.has_barriers { ids.len() } else { 1 };
        let mut threads: Vec<_> = (0..count).map(|_| self.thread()).collect();
        memory.group = vec![0; self.program.group_bytes as usize];
        for group_z in 0..groups[2] {
            for group_y in 0..groups[1] {
                for group_x in 0..groups[0] {
                    let group = [group_x, group_y, group_z];
                    memory.group.fill(0);
                    if self.has_barriers {
                        self.run_together(&mut threads, &ids, group, groups, memory)?;
                    } else if let Some(thread) = threads.first_mut() {
                        for id in &ids {
                            self.begin(thread, *id);
                            self.go_on(thread, group, groups, memory)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn thread(&self) -> Thread {
        let mut registers = vec![0; self.code.registers.len()];
        for (register, bits) in &self.code.constants {
            registers[*register as usize] = *bits;
        }
        Thread {
            registers,
            private: vec![0; self.program.private_bytes as usize],
            local: vec![0; self.code.local_bytes as usize],
            local_id: [0; 3],
            at: 0,
            state: State::Running,
        }
    }

    fn begin(&self, thread: &mut Thread, local_id: [u32; 3]) {
        thread.local_id = local_id;
        thread.at = 0;
        thread.state = State::Running;
        thread.private.fill(0);
    }

    fn run_together(
        &self,
        threads: &mut [Thread],
        ids: &[[u32; 3]],
        group: [u32; 3],
        groups: [u32; 3],
        memory: &mut Memory,
    ) -> Result<(), Fault> {
        for (thread, id) in threads.iter_mut().zip(ids) {
            self.begin(thread, *id);
        }
        loop {
            for thread in threads.iter_mut() {
                thread.state = State::Running;
                self.go_on(thread, group, groups, memory)?;
            }
            let first = threads.first().map_or((0, State::Ended), |thread| (thread.at, thread.state));
            let is_apart = |thread: &Thread| thread.state != first.1 || thread.at != first.0;
            if let Some(other) = threads.iter().find(|thread| is_apart(thread)) {
                let site = match (first.1, other.state) {
                    (State::Waiting(site), _) | (_, State::Waiting(site)) => site,
                    _ => Site::default(),
                };
                return Err(Fault::Apart { site });
            }
            if first.1 == State::Ended {
                return Ok(());
            }
        }
    }

    /// Runs a thread until it waits or ends.
    fn go_on(
        &self,
        thread: &mut Thread,
        group: [u32; 3],
        groups: [u32; 3],
        memory: &mut Memory,
    ) -> Result<(), Fault> {
        let Thread { registers, private, local, local_id, at, state } = thread;
        loop {
            let instruction = &self.code.instructions[*at];
            *at += 1;
            let get = |register: u32| registers[register as usize];
            let (to, value) = match *instruction {
                Instr::Copy { to, a } => (to, get(a)),
                Instr::Unary { op, kind, to, a } => (to, eval::unary(op, kind, get(a))),
                Instr::Binary { op, kind, to, a, b } => (to, eval::binary(op, kind, get(a), get(b))),
                Instr::Fma { kind, to, a, b, c } => (to, eval::fma(kind, get(a), get(b), get(c))),
                Instr::Select { to, condition, a, b } => {
                    (to, if get(condition) != 0 { get(a) } else { get(b) })
                }
                Instr::Convert { from, kind, to, a } => (to, eval::convert(from, kind, get(a))),
                Instr::Load { to, place } => {
                    let place = &self.code.places[place as usize];
                    (to, memory.at(place, registers, private, local)?.load(place.kind))
                }
                Instr::Store { place, a } => {
                    let (place, value) = (&self.code.places[place as usize], get(a));
                    memory.at(place, registers, private, local)?.store(place.kind, value);
                    continue;
                }
                Instr::Atomic { place, op, a, old } => {
                    let (place, value) = (&self.code.places[place as usize], get(a));
                    let cell = memory.at(place, registers, private, local)?;
                    (old, cell.change(place.kind, |before| eval::atomic(op, place.kind, before, value)))
                }
                Instr::CompareExchange { place, expected, a, old, exchanged } => {
                    let (place, expected, value) = (&self.code.places[place as usize], get(expected), get(a));
                    let cell = memory.at(place, registers, private, local)?;
                    let before =
                        cell.change(place.kind, |before| if before == expected { value } else { before });
                    registers[old as usize] = before;
                    (exchanged, u64::from(before == expected))
                }
                Instr::Length { to, buffer, offset, stride } => {
                    (to, memory.length(buffer, offset, stride).into())
                }
                Instr::Own { to, own } => (
                    to,
                    u64::from(match own {
                        Own::LocalId(side) => local_id[usize::from(side)],
                        Own::GroupId(side) => group[usize::from(side)],
                        Own::GroupCount(side) => groups[usize::from(side)],
                    }),
                ),
                Instr::Jump(target) => {
                    *at = target as usize;
                    continue;
                }
                Instr::JumpIf(condition, target) => {
                    if get(condition) != 0 {
                        *at = target as usize;
                    }
                    continue;
                }
                Instr::JumpUnless(condition, target) => {
                    if get(condition) == 0 {
                        *at = target as usize;
                    }
                    continue;
                }
                Instr::Zero { offset, len } => {
                    local[offset as usize..][..len as usize].fill(0);
                    continue;
                }
                Instr::Barrier(site) => {
                    *state = State::Waiting(site);
                    return Ok(());
                }
                Instr::End => {
                    *state = State::Ended;
                    return Ok(());
                }
            };
            registers[to as usize] = value;
        }
    }
}
