//! The probes, one file per family.

mod approximate;
mod atomic;
mod bits;
mod bulk;
mod cluster;
mod compare;
mod control;
mod convert;
mod copy;
mod double;
mod half;
mod hardware;
mod integer;
mod matrix;
mod mbarrier;
mod memory;
mod narrow;
mod release;
mod single;
mod special;
mod sums;
mod tensor;
mod tensormap;
mod warp;
mod wgmma;
mod wmma;

use super::builder::Set;
use super::probe::{Family, Probe};

/// All probes of a family.
pub(super) fn probes(family: Family) -> Vec<Probe> {
    let mut set = Set::new(family);
    match family {
        Family::Integer => integer::probes(&mut set),
        Family::Bits => bits::probes(&mut set),
        Family::Single => single::probes(&mut set),
        Family::Double => double::probes(&mut set),
        Family::Half => half::probes(&mut set),
        Family::Approximate => approximate::probes(&mut set),
        Family::Convert => convert::probes(&mut set),
        Family::Narrow => narrow::probes(&mut set),
        Family::Compare => compare::probes(&mut set),
        Family::Warp => warp::probes(&mut set),
        Family::Atomic => atomic::probes(&mut set),
        Family::Memory => memory::probes(&mut set),
        Family::Matrix => matrix::probes(&mut set),
        Family::Special => special::probes(&mut set),
        Family::Sums => sums::probes(&mut set),
        Family::Wgmma => wgmma::probes(&mut set),
        Family::Wmma => wmma::probes(&mut set),
        Family::Copy => copy::probes(&mut set),
        Family::Bulk => bulk::probes(&mut set),
        Family::Tensor => tensor::probes(&mut set),
        Family::TensorMap => tensormap::probes(&mut set),
        Family::Mbarrier => mbarrier::probes(&mut set),
        Family::Cluster => cluster::probes(&mut set),
        Family::Control => control::probes(&mut set),
        Family::Hardware => hardware::probes(&mut set),
    }
    set.finish()
}

/// Every choice of one string a group, joined: the spellings of an instruction
/// with optional modifiers (the empty string leaves one out).
fn spellings(groups: &[&[&str]]) -> Vec<String> {
    groups.iter().fold(vec![String::new()], |done, group| {
        done.iter()
            .flat_map(|start| group.iter().map(move |part| format!("{start}{part}")))
            .collect()
    })
}
