//! Modules that load, whole or in part, and those that do not.

mod forms;
mod forms_ptxas;
mod legality;
mod loading;
mod targets;
