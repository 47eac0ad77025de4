//! The context of a kernel's roles: which configuration it is, what it was launched with, and where the
//! CTA's shared memory is.

/// The main loop of an architecture: the types of what its roles share.
pub trait Target: Copy {
    /// A row of its tables of configurations.
    type Config: 'static;
    /// Its parameter block.
    type Params: 'static;
    /// The map of a CTA's shared memory.
    type Memory: Copy;
}

/// Context of every role: the configuration, the parameters, the list, the memory and the rank. `L`
/// is the launch's work list.
#[derive(Clone, Copy)]
pub struct Cta<'a, T: Target, L> {
    /// The kernel's configuration.
    pub config: &'static T::Config,
    /// The parameters of the launch, or of the problem that a role works at.
    pub params: &'a T::Params,
    /// Generic address of the tensor maps at the head of those parameters.
    pub maps: u64,
    /// The list of tiles, and the CTA's share of them.
    pub list: L,
    /// The map of shared memory.
    pub memory: T::Memory,
    /// Rank of the CTA among those that work together.
    pub rank: u32,
}
