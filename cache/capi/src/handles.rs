//! The table behind every handle: numbers with generations, so that a stale one is an error.
//!
//! It is the one process-wide table of the project. C has nobody to pass it to: a context argument would itself be a
//! pointer that nothing can check. It holds what callers opened and nothing by itself.

use crate::failure::{Failure, Result};
use crate::status::spoc_status;
use std::any::Any;
use std::sync::{Arc, PoisonError, RwLock};

/// What a handle can stand for.
pub trait Object: Any + Send + Sync {
    /// Its name in messages: the header's type.
    const NAME: &'static str;
}

type Shared = Arc<dyn Any + Send + Sync>;

struct Entry {
    generation: u32,
    held: Option<(&'static str, Shared)>,
}

/// Numbers for objects. A handle is `generation << 32 | index + 1`, and never 0.
struct Table {
    entries: Vec<Entry>,
    unused: Vec<u32>,
}

static TABLE: RwLock<Table> = RwLock::new(Table { entries: Vec::new(), unused: Vec::new() });

fn bad(wanted: &str, id: u64, why: &str) -> Failure {
    Failure::new(spoc_status::SPOC_ERROR_BAD_HANDLE, format_args!("{wanted} {id:#x}: {why}"))
}

#[allow(clippy::cast_possible_truncation)] // the halves of a handle
fn halves(id: u64) -> (Option<usize>, u32) {
    ((id as u32).checked_sub(1).map(|index| index as usize), (id >> 32) as u32)
}

impl Table {
    fn put(&mut self, name: &'static str, object: Shared) -> Option<u64> {
        let index = match self.unused.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.entries.len()).ok().filter(|index| *index < u32::MAX)?;
                self.entries.push(Entry { generation: 0, held: None });
                index
            }
        };
        let entry = &mut self.entries[index as usize];
        entry.generation += 1;
        entry.held = Some((name, object));
        Some((u64::from(entry.generation) << 32) | u64::from(index + 1))
    }

    /// The place of a handle's object.
    fn place(&self, wanted: &str, id: u64) -> Result<usize> {
        let (index, generation) = halves(id);
        let none = || bad(wanted, id, "there is no such handle");
        if id == 0 {
            return Err(bad(wanted, id, "a handle was expected, found none"));
        }
        let index = index.ok_or_else(none)?;
        let entry = self.entries.get(index).ok_or_else(none)?;
        match entry.held {
            _ if generation == 0 || generation > entry.generation => Err(none()),
            Some((name, _)) if generation == entry.generation && name == wanted => Ok(index),
            Some((name, _)) if generation == entry.generation => {
                Err(bad(wanted, id, &format!("it is a {name}")))
            }
            _ => Err(bad(wanted, id, "it was closed")),
        }
    }

    fn get(&self, wanted: &str, id: u64) -> Result<Option<Shared>> {
        let index = self.place(wanted, id)?;
        Ok(self.entries[index].held.as_ref().map(|(_, object)| Arc::clone(object)))
    }

    fn take(&mut self, wanted: &str, id: u64) -> Result<Option<Shared>> {
        let index = self.place(wanted, id)?;
        let entry = &mut self.entries[index];
        let taken = entry.held.take().map(|(_, object)| object);
        // A generation that ran out would repeat: its place is not used again.
        if entry.generation < u32::MAX {
            self.unused.extend(u32::try_from(index));
        }
        Ok(taken)
    }
}

/// A handle for an object.
pub fn put<T: Object>(object: T) -> Result<u64> {
    let shared: Shared = Arc::new(object);
    let full = || Failure::new(spoc_status::SPOC_ERROR_TOO_LARGE, "no more handles can be numbered");
    TABLE.write().unwrap_or_else(PoisonError::into_inner).put(T::NAME, shared).ok_or_else(full)
}

/// The object of a handle, for as long as the caller keeps it: another thread may close the handle meanwhile.
pub fn get<T: Object>(id: u64) -> Result<Arc<T>> {
    object(id, TABLE.read().unwrap_or_else(PoisonError::into_inner).get(T::NAME, id)?)
}

/// Closes a handle: the number is worth nothing from now on. The object goes when nobody uses it any more.
pub fn take<T: Object>(id: u64) -> Result<Arc<T>> {
    object(id, TABLE.write().unwrap_or_else(PoisonError::into_inner).take(T::NAME, id)?)
}

/// Names and types go together, so this fails for nobody.
fn object<T: Object>(id: u64, found: Option<Shared>) -> Result<Arc<T>> {
    found.and_then(|shared| shared.downcast().ok()).ok_or_else(|| bad(T::NAME, id, "it is of another type"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Apple(u32);
    impl Object for Apple {
        const NAME: &'static str = "apple";
    }
    struct Pear;
    impl Object for Pear {
        const NAME: &'static str = "pear";
    }

    fn message<T>(result: Result<T>) -> String {
        result.err().map_or_else(|| "no error".to_owned(), |failure| failure.message)
    }

    #[test]
    fn stale_foreign_and_invented_handles_are_errors() -> Result<()> {
        let first = put(Apple(1))?;
        assert_eq!(get::<Apple>(first)?.0, 1);
        assert!(message(get::<Pear>(first)).ends_with("it is a apple"));
        assert!(message(get::<Apple>(0)).ends_with("found none"));
        assert!(message(get::<Apple>(u64::MAX)).ends_with("no such handle"));
        assert!(message(get::<Apple>(first + (1 << 32))).ends_with("no such handle"));

        let kept = take::<Apple>(first)?;
        assert!(message(take::<Apple>(first)).ends_with("it was closed"));
        let second = put(Apple(2))?;
        assert_ne!(first, second);
        assert!(message(get::<Apple>(first)).ends_with("it was closed"));
        assert_eq!((kept.0, get::<Apple>(second)?.0), (1, 2));
        take::<Apple>(second).map(drop)
    }

    #[test]
    fn a_generation_that_ran_out_is_retired() {
        let mut table = Table { entries: Vec::new(), unused: Vec::new() };
        table.entries.push(Entry { generation: u32::MAX - 1, held: None });
        table.unused.push(0);
        let last = table.put("apple", Arc::new(Apple(1)));
        assert_eq!(last, Some((u64::from(u32::MAX) << 32) | 1));
        assert!(table.take("apple", last.unwrap_or(0)).is_ok());
        assert_eq!(table.put("apple", Arc::new(Apple(2))), Some((1 << 32) | 2));
    }
}
