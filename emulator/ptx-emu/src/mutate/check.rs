//! Runs mutants.

use super::{Edit, Equivalent, Fate, Mutant, Mutants, Mutation, equivalents, operators, tree};
use crate::experiment::{Conditions, Contents, Experiment};
use crate::explore::{self, ExploreOptions, Failure, Wrong, explore};
use ptx_emu_core::syntax::{self, ast};
use ptx_emu_core::{Checks, Executed, Gpu, LaunchError, LoadError, Model, Module};
use std::collections::HashMap;

/// The options of a check.
#[derive(Debug, Clone)]
pub struct MutateOptions {
    /// Seeds besides `eager` and `lazy`.
    pub seeds: u64,
    /// Mutants that are known to be no faults.
    pub equivalents: Vec<Equivalent>,
    /// Most mutants that are run; `None`: all. If there are more, every so many-th is run.
    pub at_most: Option<usize>,
    /// Mutants run at once; `None`: as many as the host has cores and memory
    /// for. The result does not depend on it.
    pub workers: Option<usize>,
    /// The orders that hold.
    pub model: Model,
}

impl Default for MutateOptions {
    fn default() -> Self {
        Self { seeds: 64, equivalents: Vec::new(), at_most: None, workers: None, model: Model::Ptx }
    }
}

/// The reason why there are no results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MutateError {
    /// The module is refused.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The launch is refused.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The kernel goes wrong as it is.
    #[error("the kernel goes wrong without any mutation, schedule {}: {}", .0.schedule, .0.finding)]
    Original(Box<Failure>),
    /// Launches that are not of one kernel.
    #[error("launches must be of the kernel `{required}` of one PTX text, got one of `{actual}`")]
    Different {
        /// Kernel of the first launch.
        required: String,
        /// The value of another one, perhaps of another text.
        actual: String,
    },
    /// No launch.
    #[error("at least one launch is required, got none")]
    NoLaunch,
}

/// A mutant to run.
struct MutantRun {
    /// Item of the tree and instruction in its body.
    place: (usize, usize),
    edit: Edit,
    mutant: Mutant,
    /// The fate, if another launch has decided it.
    settled: Option<Fate>,
}

/// The reference of all mutants.
struct Baseline<'a> {
    experiment: &'a Experiment,
    tree: ast::Module,
    outputs: Vec<Contents>,
    limit: u64,
    threads: Option<usize>,
    seeds: u64,
    checks: Checks,
}

/// Runs every mutant of the kernel.
///
/// # Errors
/// A launch that is refused or that goes wrong unchanged.
pub fn mutate(experiment: &Experiment, options: &MutateOptions) -> Result<Mutants, MutateError> {
    mutate_further(experiment, options, &[])
}

/// Runs every mutant of a kernel in several launches of it, one after the other, until one of them
/// catches it; a mutant that is known to be no fault is run only in the first launch that executes
/// its instruction. A mutant that one launch catches counts as caught.
///
/// # Errors
/// The same as [`mutate`]; launches of different kernels or of different PTX; and no launch at all.
pub fn mutate_all(
    launches: &[Experiment],
    options: &MutateOptions,
) -> Result<Mutants, MutateError> {
    let (first, others) = launches.split_first().ok_or(MutateError::NoLaunch)?;
    let other = others.iter().find(|other| other.ptx != first.ptx || other.entry != first.entry);
    if let Some(other) = other {
        let (required, actual) = (first.entry.clone(), other.entry.clone());
        return Err(MutateError::Different { required, actual });
    }
    others.iter().try_fold(mutate(first, options)?, |mutants, launch| {
        mutate_further(launch, options, &mutants.mutants)
    })
}

/// Lists the mutants of a kernel of a module, none of which is run: all count as not reached.
///
/// # Errors
/// A text that is no module for the machine.
pub fn list(ptx: &str, entry: &str, gpu: &Gpu) -> Result<Vec<Mutant>, LoadError> {
    let tree = tree::only(&syntax::parse(ptx)?, entry);
    let module = Module::decode(&tree, ptx, gpu)?;
    Ok(runs(ptx, &module, &tree, &[]).into_iter().map(|run| run.mutant).collect())
}

/// [`mutate`], for mutants of which other launches made `before`: all of them, or none.
fn mutate_further(
    experiment: &Experiment,
    options: &MutateOptions,
    before: &[Mutant],
) -> Result<Mutants, MutateError> {
    let whole = syntax::parse(&experiment.ptx).map_err(LoadError::from)?;
    let tree = tree::only(&whole, &experiment.entry);
    let module = Module::decode(&tree, &experiment.ptx, &experiment.gpu)?;
    let original = ExploreOptions {
        seeds: options.seeds,
        allow_different: false,
        instruction_limit: None,
        workers: options.workers,
        checks: Checks::new(options.model),
    };
    let found = explore(experiment, &module, &original)?;
    if let Some(failure) = found.failure {
        return Err(MutateError::Original(Box::new(failure)));
    }
    let outputs = found.eager.map(|eager| eager.outputs).unwrap_or_default();
    let mut runs = runs(&experiment.ptx, &module, &tree, &found.executed);
    for run in &mut runs {
        run.mutant.equivalent = known(&experiment.entry, &run.mutant, options);
    }
    leave_out(&mut runs, options.at_most);
    for (run, before) in runs.iter_mut().zip(before) {
        let open = match before.fate {
            Fate::NotReached | Fate::LeftOut => true,
            Fate::Survived => run.mutant.fate == Fate::Survived && before.equivalent.is_none(),
            Fate::Caught { .. } | Fate::Refused(_) => false,
        };
        if !open {
            run.settled = Some(before.fate.clone());
        }
    }
    let workers = options.workers.unwrap_or_else(|| explore::workers(experiment));
    let baseline = Baseline {
        experiment,
        tree,
        outputs,
        // Spinning costs instructions in a right kernel too, but hardly so many.
        limit: found.most_instructions.saturating_mul(4) + 100_000,
        threads: (workers > 1).then_some(1),
        seeds: options.seeds,
        checks: Checks::new(options.model),
    };
    let fates = explore::in_parallel(runs.len(), workers, |at| baseline.fate(&runs[at]));
    let mut mutants = Vec::with_capacity(runs.len());
    for (run, fate) in runs.into_iter().zip(fates) {
        mutants.push(Mutant { fate: fate?, ..run.mutant });
    }
    Ok(Mutants { kernel: experiment.entry.clone(), seeds: options.seeds, mutants })
}

/// All mutants; those whose instruction no lane executed are marked.
fn runs(ptx: &str, module: &Module, tree: &ast::Module, executed: &[Executed]) -> Vec<MutantRun> {
    let mut found = Vec::new();
    let mut seen: HashMap<(String, Mutation, String), usize> = HashMap::new();
    let mut number = |text: &str, mutation: Mutation, place: &str| {
        let number = seen.entry((text.to_owned(), mutation, place.to_owned())).or_default();
        *number += 1;
        *number
    };
    let lines: Vec<&str> = ptx.lines().collect();
    for (item, function, body) in tree::functions(tree) {
        let written = module.written(&function.name);
        let instructions = tree::instructions(body);
        let constants = tree::constants(&instructions);
        let changes = instructions.iter().enumerate().filter_map(|(ordinal, ins)| {
            let mutants = operators::mutants(&tree::with_constant_count(ins, &constants));
            let line = (ins.pos.line as usize).checked_sub(1).and_then(|at| lines.get(at));
            let instruction = line.map_or("", |line| line.trim());
            (!mutants.is_empty()).then_some((ordinal, ins.pos.line, instruction, mutants))
        });
        let changes: Vec<_> = changes.collect();
        let shapes: Vec<String> =
            changes.iter().map(|(.., instruction, _)| equivalents::shape(instruction)).collect();
        for (at, (ordinal, line, instruction, mutants)) in changes.into_iter().enumerate() {
            let pc = written.get(ordinal).copied().unwrap_or(usize::MAX);
            let reached = executed.get(pc).is_some_and(|executed| executed.threads != 0);
            let (shape, place) = (&shapes[at], equivalents::place(&shapes, at));
            for (mutation, edit) in mutants {
                let occurrence = number(instruction, mutation, "");
                // Without registers in it, it is its own shape.
                let alike = match shape == instruction {
                    true => occurrence,
                    false => number(shape, mutation, ""),
                };
                found.push(MutantRun {
                    place: (item, ordinal),
                    edit,
                    settled: None,
                    mutant: Mutant {
                        function: function.name.clone(),
                        line,
                        instruction: instruction.to_owned(),
                        mutation,
                        occurrence,
                        shape: shape.clone(),
                        alike,
                        nth: number(shape, mutation, &place),
                        place: place.clone(),
                        fate: if reached { Fate::Survived } else { Fate::NotReached },
                        equivalent: None,
                    },
                });
            }
        }
    }
    found
}

/// Marks what is more than `at_most` mutants, evenly over the text; which ones does not
/// depend on the launch.
fn leave_out(runs: &mut [MutantRun], at_most: Option<usize>) {
    let count = runs.len();
    let Some(most) = at_most.filter(|&most| most < count) else { return };
    for (at, run) in runs.iter_mut().enumerate() {
        let taken = at * most / count != (at + 1) * most / count;
        if !taken && run.mutant.fate == Fate::Survived {
            run.mutant.fate = Fate::LeftOut;
        }
    }
}

/// The reason for which a mutant is known to be no fault.
fn known(kernel: &str, mutant: &Mutant, options: &MutateOptions) -> Option<String> {
    let found = options.equivalents.iter().find(|equivalent| equivalent.covers(kernel, mutant));
    found.map(|equivalent| equivalent.reason.clone())
}

impl Baseline<'_> {
    fn fate(&self, run: &MutantRun) -> Result<Fate, LaunchError> {
        if let Some(fate) = &run.settled {
            return Ok(fate.clone());
        }
        if run.mutant.fate != Fate::Survived {
            return Ok(run.mutant.fate.clone());
        }
        let (item, ordinal) = run.place;
        let tree = tree::edited(&self.tree, item, ordinal, &run.edit);
        let module = match Module::decode(&tree, &self.experiment.ptx, &self.experiment.gpu) {
            Ok(module) => module,
            Err(error) => return Ok(Fate::Refused(error.to_string())),
        };
        for schedule in explore::schedules(self.seeds) {
            let conditions = Conditions {
                schedule,
                threads: self.threads,
                instruction_limit: Some(self.limit),
                checks: self.checks,
            };
            let reference = Some(self.outputs.as_slice());
            if let Err(Wrong { finding, .. }) =
                explore::attempt(self.experiment, &module, &conditions, reference)?
            {
                return Ok(Fate::Caught { schedule, finding });
            }
        }
        Ok(Fate::Survived)
    }
}
