//! Options are structs that may get more fields, so that other crates make them by a constructor and
//! a call for each field that is not to have its usual value.

/// Methods that set one field each and give the options back: `setters!(Options { field: Type, .. })`, for a
/// type of the crate that calls it.
#[macro_export]
macro_rules! setters {
    ($options:ty { $($(#[$attribute:meta])* $field:ident: $argument:ty),+ $(,)? }) => {
        impl $options {
            $(
                #[doc = concat!("The same with another [`", stringify!($field), "`](Self#structfield.", stringify!($field), ").")]
                $(#[$attribute])*
                #[must_use]
                #[allow(clippy::useless_conversion)]
                pub fn $field(mut self, $field: $argument) -> Self {
                    self.$field = $field.into();
                    self
                }
            )+
        }
    };
}
pub(crate) use crate::setters;
