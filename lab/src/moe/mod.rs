//! A mixture of experts with operands on the host: [`MoeRun`] owns its operands on a device, which
//! [`MoeOperands`] describes on the host, and compares each step with the oracle.

mod check;
mod operands;
mod run;

pub use check::{StepCheck, check};
pub use operands::{HostBiases, MoeOperands};
pub use run::MoeRun;
