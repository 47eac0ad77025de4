//! Values that layers above devices keep beside opened kernels.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::Kernels;

/// One value of each type that was asked for. A type belongs to the module that declares it, so devices need
/// not know of plans.
#[derive(Default)]
pub(super) struct Kept(Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Kept {
    /// The value of type `T`, made if there is none.
    fn get<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let value = values.entry(TypeId::of::<T>()).or_insert_with(|| Arc::new(T::default()));
        value.clone().downcast().expect("the value is found by its type")
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.lock().unwrap_or_else(PoisonError::into_inner).len();
        write!(f, "Kept({count})")
    }
}

impl Kernels {
    /// The value of type `T` that these kernels and their clones share. Kernels with another tuning table
    /// start with none.
    pub(crate) fn kept<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        self.kept.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_one_value() {
        let kept = Kept::default();
        *kept.get::<Mutex<u8>>().lock().expect("alone") = 3;
        *kept.get::<Mutex<u16>>().lock().expect("alone") = 4;
        assert_eq!(*kept.get::<Mutex<u8>>().lock().expect("alone"), 3);
        assert_eq!(*kept.get::<Mutex<u16>>().lock().expect("alone"), 4);
    }
}
