//! Typed sources and destinations of copies.

use std::ops::{Deref, DerefMut};

use super::{HostSink, HostSource};
use crate::vector::Element;

/// A source of whole elements of one kind.
pub trait ElementSource<T: Element>: HostSource {}

/// A destination of whole elements of one kind.
pub trait ElementSink<T: Element>: HostSink {}

impl ElementSource<u8> for Vec<u8> {}
impl ElementSink<u8> for Vec<u8> {}

/// Owned elements on their way to or from a device. A type of its own rather than `Vec<T>`, so that the literal
/// `vec![0; n]` stays what it is elsewhere: bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Elements<T: Element>(pub Vec<T>);

impl<T: Element> From<Vec<T>> for Elements<T> {
    fn from(elements: Vec<T>) -> Self {
        Self(elements)
    }
}

impl<T: Element> Deref for Elements<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T: Element> DerefMut for Elements<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.0
    }
}

// SAFETY: a vector's elements live on the heap, so they stay in place when the value moves; they are plain numbers
// without padding, so all bytes are initialised; the ledger owns the value, so nobody can grow or drop it before
// the copy has run.
unsafe impl<T: Element> HostSource for Elements<T> {
    fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr().cast()
    }

    fn len_bytes(&self) -> usize {
        size_of_val(self.0.as_slice())
    }
}

// SAFETY: as above, every bit pattern is an element, and an owned vector is reachable by nobody else.
unsafe impl<T: Element> HostSink for Elements<T> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

impl<T: Element> ElementSource<T> for Elements<T> {}
impl<T: Element> ElementSink<T> for Elements<T> {}
