//! The one way in which parts of a launch's state point at each other.

use std::ops::{Deref, DerefMut};

/// A pointer to a part of the launch's state.
///
/// NOTE: safe by a rule of this module, not by the type: the parts are boxed for the whole launch and are not moved
/// once threads run, one OS thread runs them all, and nobody keeps a borrow across a switch of fibers.
pub(crate) struct Handle<T>(*mut T);

impl<T> Clone for Handle<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> Handle<T> {
    pub(crate) const NULL: Self = Handle(std::ptr::null_mut());

    pub(crate) fn new(part: &mut T) -> Self {
        Handle(part)
    }

    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl<T> Deref for Handle<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the rule on the type.
        unsafe { &*self.0 }
    }
}

impl<T> DerefMut for Handle<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the rule on the type.
        unsafe { &mut *self.0 }
    }
}
