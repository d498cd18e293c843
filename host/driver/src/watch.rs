//! A table that tells what it is asked: for tests that count calls.

use crate::Functions;
use std::sync::OnceLock;

/// Is told the name of a function before it is called, on the thread that calls it.
pub type Watcher = fn(&'static str);

/// What the functions of the watching table call.
pub(crate) struct Watched {
    pub(crate) functions: Functions,
    pub(crate) watcher: Watcher,
}

/// There is one such table: its functions are plain ones and can only look here.
pub(crate) static WATCHED: OnceLock<Watched> = OnceLock::new();

/// The function of the watching table for a field of [`Functions`] with arguments of these types.
macro_rules! watching {
    ($field:ident ($($argument:ty),*)) => {
        watching!(@name $field () ($($argument,)*) (a b c d e f g h i j k l))
    };
    // Gives each type a name.
    (@name $field:ident ($($named:ident: $type:ty,)*) ($next:ty, $($rest:ty,)*) ($name:ident $($names:ident)*)) => {
        watching!(@name $field ($($named: $type,)* $name: $next,) ($($rest,)*) ($($names)*))
    };
    (@name $field:ident ($($named:ident: $type:ty,)*) () ($($names:ident)*)) => {{
        #[allow(clippy::too_many_arguments, reason = "as many as the driver's")]
        unsafe extern "C" fn watching($($named: $type),*) -> Code {
            let watched = $crate::watch::WATCHED.get().expect("set before the table was made");
            (watched.watcher)(stringify!($field));
            // SAFETY: the caller's promises.
            unsafe { (watched.functions.$field)($($named),*) }
        }
        watching
    }};
}
pub(crate) use watching;

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    thread_local! {
        static CALLS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    }

    #[test]
    fn every_call_is_told_and_passed_on() {
        let table = Functions::absent().watched(|name| CALLS.with_borrow_mut(|calls| calls.push(name)));
        let mut count = 0;
        // SAFETY: the functions of the absent driver do nothing.
        unsafe {
            assert_eq!((table.cuInit)(0), crate::ERROR_NOT_INITIALIZED);
            assert_eq!((table.cuDeviceGetCount)(&mut count), crate::ERROR_NOT_INITIALIZED);
        }
        assert_eq!(CALLS.take(), ["cuInit", "cuDeviceGetCount"]);
    }
}
