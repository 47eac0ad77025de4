//! Checks and their consequences: models of memory, kinds of findings and their levels.

mod kind;

pub use kind::{Kind, ParseKindError};

use crate::Schedule;
use std::fmt;
use std::str::FromStr;

/// The orders that are taken to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Model {
    /// The promises of PTX ISA, and no more.
    #[default]
    Ptx,
    /// The orders that the hardware of today is known to keep besides, which published kernels rely
    /// on:
    /// - a `tcgen05.cp` comes after the earlier `tcgen05.mma` of its thread;
    /// - commits of one thread report in the order in which they were issued;
    /// - what releases or acquires orders `tcgen05` operations as their fences do;
    /// - a copy out of shared memory may end after its CTA, and so may a `cp.async` into it;
    /// - warps may store one value to the same place of shared memory in any order;
    /// - lanes of a warp that no branch has parted go together;
    /// - what a thread did in its CTA's shared memory comes before its `barrier.cluster.arrive.relaxed`;
    /// - the use of all registers of a `tcgen05.ld` is as good as its `tcgen05.wait::ld`;
    /// - lane 0 in the address of a `tcgen05.ld` or `.st` stands for the first lane of the warp;
    /// - warps of a warpgroup may give `setmaxnreg` different counts;
    /// - an address of `.shared::cta` is the low half of the generic address;
    /// - shared memory that was never written may be loaded, if nothing depends on what is loaded.
    Hardware,
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ptx => "ptx",
            Self::Hardware => "hardware",
        })
    }
}

/// A word that names no [`Model`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("model: required hardware or ptx, actual `{0}`")]
pub struct ParseModelError(String);

impl FromStr for Model {
    type Err = ParseModelError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "hardware" => Ok(Self::Hardware),
            "ptx" => Ok(Self::Ptx),
            _ => Err(ParseModelError(text.to_owned())),
        }
    }
}

/// Lists in words the checks that a run without findings did not make. `schedule`: the one that was
/// tried; `None`: many were.
#[must_use]
pub fn not_looked_for(schedule: Option<Schedule>, model: Model) -> Vec<&'static str> {
    let mut what = match schedule {
        Some(Schedule::Eager) => vec!["data races", "other schedules"],
        // Accesses to global memory are not put in order.
        Some(Schedule::Lazy | Schedule::Random(_)) => {
            vec!["data races in global memory", "other schedules"]
        }
        None => vec!["data races in global memory", "schedules beyond these"],
    };
    if model == Model::Hardware {
        what.push("orders that hardware keeps but PTX ISA does not promise");
    }
    what
}

/// The consequence of a kind of finding for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The finding is not mentioned.
    Allow,
    /// The finding is mentioned, but the run is right.
    Warn,
    /// The run is wrong.
    Deny,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Warn => "warn",
            Self::Deny => "deny",
        })
    }
}

/// The checks of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checks {
    /// The orders that hold.
    pub model: Model,
    /// Levels that differ from those of the model.
    levels: [Option<Level>; Kind::COUNT],
    /// The first denied finding ends the launch, as an error. Otherwise only those do behind
    /// which the machine cannot go on ([`Kind::is_fatal`]), and the report has the others.
    pub stop: bool,
    /// Most findings of a report.
    pub most: usize,
}

impl Checks {
    /// Findings of a report, unless stated otherwise.
    pub const MOST: usize = 20;

    /// The checks of a model; the first denied finding is an error.
    #[must_use]
    pub const fn new(model: Model) -> Self {
        Self { model, levels: [None; Kind::COUNT], stop: true, most: Self::MOST }
    }

    /// The same with the level of one kind. A kind that is fatal stays denied.
    #[must_use]
    pub const fn with(mut self, kind: Kind, level: Level) -> Self {
        self.levels[kind as usize] = Some(level);
        self
    }

    /// The same without an end at the first denied finding, and with at most `most` findings in
    /// the report.
    #[must_use]
    pub const fn collecting(mut self, most: usize) -> Self {
        self.stop = false;
        self.most = most;
        self
    }

    /// Returns the level of a kind.
    #[must_use]
    pub fn level(&self, kind: Kind) -> Level {
        if kind.is_fatal() {
            return Level::Deny;
        }
        self.levels[kind as usize].unwrap_or_else(|| kind.level(self.model))
    }
}

impl Default for Checks {
    fn default() -> Self {
        Self::new(Model::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            let kebab = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(kind.name().chars().all(kebab), "{kind}");
        }
        assert!("data_race".parse::<Kind>().is_err());
        for model in [Model::Hardware, Model::Ptx] {
            assert_eq!(model.to_string().parse(), Ok(model));
        }
        assert_eq!("h100".parse::<Model>(), Err(ParseModelError("h100".to_owned())));
    }

    #[test]
    fn levels_are_those_of_the_model_unless_stated() {
        let hardware = Checks::new(Model::Hardware);
        let kind = Kind::TensorLoadRegisters;
        assert_eq!(hardware.level(kind), Level::Allow);
        assert_eq!(Checks::default().level(kind), Level::Deny);
        assert_eq!(hardware.with(kind, Level::Warn).level(kind), Level::Warn);
        assert_eq!(hardware.with(Kind::Trap, Level::Allow).level(Kind::Trap), Level::Deny);
    }
}
