//! Launches. One runs when it is made, unless the next one may overlap it.

use crate::capture;
use crate::errors::{
    ASSERT, COOPERATIVE_LAUNCH_TOO_LARGE, Code, Failure, INVALID_CLUSTER_SIZE,
    INVALID_CONFIGURATION, INVALID_PTX, INVALID_VALUE, LAUNCH_FAILED, NOT_SUPPORTED, OUT_OF_MEMORY,
};
use crate::graphs::Operation;
use crate::modules::{Decoded, unknown};
use crate::occupancy;
use crate::report::{self, Event};
use crate::settings::EventTimes;
use crate::state::State;
use ptx_emu_core::{Kind, LaunchError, Level, Step, launch_sequence};

/// Dynamic shared memory that a kernel has without being asked for, bytes.
const DEFAULT_SHARED: u32 = 48 << 10;
/// CTAs of a cluster that every machine can hold.
const PORTABLE_CLUSTER: u32 = 8;

/// A launch, as the program asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Launch {
    /// Handle of the kernel.
    pub(crate) kernel: u64,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) cluster: Option<[u32; 3]>,
    pub(crate) dynamic_shared: u64,
    pub(crate) params: Vec<u8>,
    pub(crate) cooperative: bool,
    /// Whether it may begin before the one before it in the stream has ended.
    pub(crate) programmatic: bool,
    pub(crate) stream: u64,
}

/// Returns the failure that a launch error is to the program.
fn refusal(error: &LaunchError) -> Failure {
    let code = match error {
        LaunchError::BadLaunch { field: "grid" | "block", .. } => INVALID_CONFIGURATION,
        LaunchError::BadLaunch { field: "cluster", .. } => INVALID_CLUSTER_SIZE,
        LaunchError::Memory { .. } => OUT_OF_MEMORY,
        _ => INVALID_VALUE,
    };
    Failure::new(code, error.to_string())
}

impl State {
    /// Launches, or records the launch in the graph that the stream is captured in.
    pub(crate) fn launch(&mut self, launch: Launch) -> Result<(), Failure> {
        self.check_launch(&launch)?;
        match self.capturing(launch.stream)? {
            Some(_) => self.enqueue(launch.stream, Operation::Launch(launch)),
            None => self.run(launch),
        }
    }

    /// Runs a launch that was checked, or lets it wait for one that may overlap it.
    pub(crate) fn run(&mut self, launch: Launch) -> Result<(), Failure> {
        let follows = self.pending.last().is_some_and(|last| last.stream == launch.stream);
        if !(launch.programmatic && follows) {
            self.flush();
        }
        if let Some(code) = self.failed {
            return Err(Failure::silent(code));
        }
        report::tell(&self.settings, Event::Asked);
        let overlaps = self.settings.capture.is_none() && self.lets_dependents_begin(&launch);
        self.pending.push(launch);
        if !overlaps {
            self.flush();
        }
        Ok(())
    }

    /// Tells `exec` of a launch that was answered with an error.
    pub(crate) fn note_lost(&mut self, code: Code) {
        match code {
            NOT_SUPPORTED | INVALID_PTX => report::tell(&self.settings, Event::Refused),
            // A launch before it failed, which was told.
            LAUNCH_FAILED | ASSERT => {}
            INVALID_VALUE
            | INVALID_CONFIGURATION
            | INVALID_CLUSTER_SIZE
            | COOPERATIVE_LAUNCH_TOO_LARGE
            | OUT_OF_MEMORY => {
                self.unseen += 1;
                report::tell(&self.settings, Event::Lost);
            }
            _ => report::tell(&self.settings, Event::Lost),
        }
    }

    /// Tells `exec` that the program has read the errors of launches which a GPU refuses, too.
    pub(crate) fn note_seen(&mut self) {
        for _ in 0..std::mem::take(&mut self.unseen) {
            report::tell(&self.settings, Event::Seen);
        }
    }

    /// Whether a launch after this one can begin before it has ended.
    fn lets_dependents_begin(&self, launch: &Launch) -> bool {
        let kernel = self.kernels.get(&launch.kernel);
        let loaded = kernel.and_then(|kernel| self.modules.get(&kernel.module));
        loaded.is_some_and(|loaded| loaded.lets_dependents_begin)
    }

    /// Whether a launch fits its kernel and the machine.
    pub(crate) fn check_launch(&mut self, launch: &Launch) -> Result<(), Failure> {
        if let Some(code) = self.failed {
            return Err(Failure::silent(code));
        }
        let info = self.kernel_info(launch.kernel)?;
        let kernel = self.kernel(launch.kernel)?.clone();
        let dynamic = u32::try_from(launch.dynamic_shared).unwrap_or(u32::MAX);
        let allowed =
            kernel.max_dynamic.unwrap_or(DEFAULT_SHARED - info.static_shared.min(DEFAULT_SHARED));
        if dynamic > allowed {
            let message = format!(
                "`{}`: dynamic shared memory: required at most {allowed} bytes (the attribute \
                 MaxDynamicSharedMemorySize of the kernel), actual {dynamic}",
                ptx_emu_core::readable_name(&kernel.name),
            );
            return Err(Failure::new(INVALID_VALUE, message));
        }
        let cluster = info.cluster.or(launch.cluster).unwrap_or([1; 3]);
        let size = cluster.iter().try_fold(1u32, |size, extent| size.checked_mul(*extent));
        if size.is_none_or(|size| size > PORTABLE_CLUSTER && !kernel.non_portable) {
            let message = format!(
                "`{}`: cluster: required at most {PORTABLE_CLUSTER} CTAs (more with the attribute \
                 NonPortableClusterSizeAllowed of the kernel), actual {cluster:?}",
                ptx_emu_core::readable_name(&kernel.name),
            );
            return Err(Failure::new(INVALID_CLUSTER_SIZE, message));
        }
        let gpu = self.gpu();
        if launch.cooperative {
            let threads = launch.block.iter().product();
            let resident = occupancy::resident_ctas(&gpu, &info, threads, dynamic) * gpu.sms;
            let ctas = launch.grid.iter().map(|extent| u64::from(*extent)).product::<u64>();
            if ctas > u64::from(resident) {
                let message = format!(
                    "`{}`: grid of a cooperative launch: required at most {resident} CTAs, \
                     which {} holds at a time, actual {ctas}",
                    ptx_emu_core::readable_name(&kernel.name),
                    gpu.name,
                );
                return Err(Failure::new(COOPERATIVE_LAUNCH_TOO_LARGE, message));
            }
        }
        let decoded = self.decoded(launch)?;
        let checked = decoded.module.check_launch(&self.emulated(launch, decoded));
        checked.map_err(|error| refusal(&error))
    }

    /// The kernel's part of its module.
    fn decoded(&self, launch: &Launch) -> Result<&Decoded, Failure> {
        let kernel = self.kernels.get(&launch.kernel);
        let module = kernel.and_then(|kernel| self.modules.get(&kernel.module));
        let decoded = kernel.zip(module).and_then(|(kernel, module)| module.decoded(&kernel.name));
        decoded.ok_or_else(|| unknown("kernel", launch.kernel))
    }

    /// The launch as the emulator takes it.
    fn emulated<'a>(&self, launch: &'a Launch, decoded: &'a Decoded) -> ptx_emu_core::Launch<'a> {
        ptx_emu_core::Launch {
            entry: &decoded.info.name,
            grid: launch.grid,
            block: launch.block,
            cluster: launch.cluster,
            dynamic_shared: u32::try_from(launch.dynamic_shared).unwrap_or(u32::MAX),
            params: &launch.params,
            schedule: self.settings.schedule,
            threads: None,
            instruction_limit: None,
            checks: self.settings.checks,
        }
    }

    /// Runs the launches that wait. Errors are reported, and make calls fail from then on.
    pub(crate) fn flush(&mut self) {
        let launches = std::mem::take(&mut self.pending);
        if launches.is_empty() || self.failed.is_some() {
            return;
        }
        if let Err(failure) = self.run_all(&launches) {
            failure.complain("launch");
            if [NOT_SUPPORTED, INVALID_PTX].contains(&failure.code) {
                report::tell(&self.settings, Event::Refused);
            }
            self.fail();
        }
    }

    fn run_all(&mut self, launches: &[Launch]) -> Result<(), Failure> {
        for launch in launches {
            let kernel = self.kernel(launch.kernel)?.clone();
            let module = self.modules.get_mut(&kernel.module);
            let module = module.ok_or_else(|| unknown("module", kernel.module))?;
            module.bring_constants(&kernel.name, &self.memory)?;
        }
        let taken = self.memory.take_over()?;
        let mut captured = match (&self.settings.capture, launches) {
            (Some(folder), [launch]) => Some(capture::before(self, folder, launch)?),
            _ => None,
        };
        // The steps borrow the modules while the memory changes.
        let mut global = std::mem::take(&mut self.memory.global);
        let result = self.steps(launches).map(|steps| launch_sequence(&mut global, &steps));
        self.memory.global = global;
        self.launches += launches.len() as u64;
        launches.iter().for_each(|_| report::tell(&self.settings, Event::Launch));
        match result? {
            Ok(reports) => {
                if self.settings.event_times == EventTimes::Cycles {
                    let gpu = self.gpu();
                    let bounds = reports.iter().map(|report| report.counters.lower_bound(&gpu));
                    self.seconds += bounds.map(|bound| bound.seconds).sum::<f64>();
                }
                for report in &reports {
                    crate::abi::print(&report.printed);
                    for found in &report.findings {
                        report::finding(&self.settings, found);
                    }
                    if report.findings_left_out != 0 {
                        let more = report.findings_left_out;
                        report::complain(format_args!(
                            "{more} more findings; --max-findings shows more"
                        ));
                    }
                }
                let mut findings = reports.iter().flat_map(|report| &report.findings);
                if findings.any(|found| found.level == Level::Deny) {
                    self.fail();
                }
            }
            Err(LaunchError::Diagnostic(found)) => {
                report::finding(&self.settings, &found);
                for other in &found.others {
                    report::finding(&self.settings, other);
                }
                self.failed = Some(match found.kind() {
                    Kind::Assertion => ASSERT,
                    _ => LAUNCH_FAILED,
                });
                captured = captured.map(capture::Captured::without_outputs);
            }
            Err(error) => return Err(refusal(&error)),
        }
        if let Some(captured) = captured {
            captured.write(&self.memory)?;
        }
        self.memory.give_back(&taken)
    }

    fn steps<'a>(&'a self, launches: &'a [Launch]) -> Result<Vec<Step<'a>>, Failure> {
        let step = |launch: &'a Launch| {
            let decoded = self.decoded(launch)?;
            let emulated = self.emulated(launch, decoded);
            Ok(Step {
                module: &decoded.module,
                launch: emulated,
                programmatic: launch.programmatic,
            })
        };
        launches.iter().map(step).collect()
    }
}
