//! One value of any type, kept without a box when it is small.

use std::any::TypeId;
use std::mem::{ManuallyDrop, MaybeUninit};

/// Values of up to this many words are stored in place.
const WORDS: usize = 8;

type Slot = [MaybeUninit<usize>; WORDS];

/// What an entry keeps alive: a source, a sink or an event.
pub(crate) struct Payload {
    slot: Slot,
    of: &'static Type,
}

struct Type {
    id: fn() -> TypeId,
    /// Drops the value whose slot is given.
    drop: unsafe fn(*mut Slot),
}

struct Of<T>(T);

impl<T: Send + 'static> Of<T> {
    const INLINE: bool = size_of::<T>() <= size_of::<Slot>() && align_of::<T>() <= align_of::<Slot>();
    const TYPE: &'static Type = &Type { id: TypeId::of::<T>, drop: Self::drop_in_slot };

    /// # Safety
    /// The slot holds a `T`, or a `Box<T>` if it does not fit; it is not read again.
    unsafe fn drop_in_slot(slot: *mut Slot) {
        if Self::INLINE {
            // SAFETY: the caller says that a `T` was written here; it fits and is aligned (INLINE).
            unsafe { slot.cast::<T>().drop_in_place() };
        } else {
            // SAFETY: as above, with the box.
            unsafe { slot.cast::<Box<T>>().drop_in_place() };
        }
    }
}

// SAFETY: only `Send` values go in.
unsafe impl Send for Payload {}

impl Payload {
    /// Moves a value in; boxes it only if it is larger than eight words.
    pub(crate) fn new<T: Send + 'static>(value: T) -> Self {
        let mut slot: Slot = [MaybeUninit::uninit(); WORDS];
        let place = (&raw mut slot).cast::<T>();
        if Of::<T>::INLINE {
            // SAFETY: the slot is large and aligned enough for a `T` (INLINE).
            unsafe { place.write(value) };
        } else {
            // SAFETY: a box is one word.
            unsafe { place.cast::<Box<T>>().write(Box::new(value)) };
        }
        Self { slot, of: Of::<T>::TYPE }
    }

    /// Moves the value out, if it is a `T`.
    pub(crate) fn take<T: Send + 'static>(self) -> Result<T, Self> {
        if (self.of.id)() != TypeId::of::<T>() {
            return Err(self);
        }
        // The value leaves: the payload must not drop it.
        let this = ManuallyDrop::new(self);
        let place = (&raw const this.slot).cast::<T>();
        if Of::<T>::INLINE {
            // SAFETY: the type was compared just above, and `this` is not used again.
            Ok(unsafe { place.read() })
        } else {
            // SAFETY: as above; what does not fit was stored as a box.
            Ok(*unsafe { place.cast::<Box<T>>().read() })
        }
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        // SAFETY: the slot holds the value that `new` wrote; `take` never comes here.
        unsafe { (self.of.drop)(&raw mut self.slot) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn round_trip<T: Send + Clone + PartialEq + std::fmt::Debug + 'static>(value: T) {
        let payload = Payload::new(value.clone());
        let payload = payload.take::<u8>().map_or_else(|payload| payload, |_| Payload::new(value.clone()));
        assert_eq!(payload.take::<T>().ok(), Some(value));
    }

    #[test]
    fn values_of_any_size_and_alignment_come_back() {
        #[derive(Clone, PartialEq, Debug)]
        #[repr(align(64))]
        struct Aligned(u8);
        round_trip(());
        round_trip(vec![1_u8, 2, 3]);
        round_trip([7_usize; 8]);
        round_trip([7_usize; 9]);
        round_trip(Aligned(3));
    }

    #[test]
    fn each_value_is_dropped_once() {
        let witness = Arc::new(());
        drop(Payload::new(Arc::clone(&witness)));
        drop(Payload::new((Arc::clone(&witness), [0_usize; 20])));
        let kept = Payload::new(Arc::clone(&witness)).take::<Arc<()>>().ok();
        assert_eq!(Arc::strong_count(&witness), 2);
        drop(kept);
        assert_eq!(Arc::strong_count(&witness), 1);
    }
}
