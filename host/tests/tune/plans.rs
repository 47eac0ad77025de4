//! Planning with a table.

use fp4_formats::gemm::{Adding, Split, sm90, sm100};
use fp4_formats::{FloatType, ScaleLayout};
use nvfp4::device::{Device, Kernels};
use nvfp4::gemm::{
    ActivationKind, GemmOptions, GemmOverrides, GemmPlan, Output, Source, UpOptions, check_table,
    plan, plan_for,
};
use nvfp4::shape::GemmShape;
use nvfp4::tune::{
    self, DeviceKey, Location, MAX_PLANS, Measured, ResultKind, Table, TuneError, TuneProblem,
    Tuning,
};
use proptest::prelude::*;

use super::{MACHINES, floats, kernels, measured, nvfp4, problems, splits};
use crate::support::{Folder, no_kernels};

fn options(problem: &TuneProblem) -> GemmOptions {
    let ResultKind::Floats(output) = problem.output else { panic!("{problem}") };
    let up = problem.gated.then(UpOptions::default);
    GemmOptions::new().output(output).up(up).adding(problem.adding)
}

fn planned(kernels: &Kernels, problem: &TuneProblem) -> GemmPlan {
    let TuneProblem { shape, format, activations, .. } = *problem;
    plan_for(kernels, shape, format, activations, &options(problem)).expect("a plan")
}

/// Returns the model's choice alone.
fn by_model(kernels: &Kernels, problem: &TuneProblem) -> GemmPlan {
    let TuneProblem { shape, format, activations, .. } = *problem;
    if problem.gated {
        return planned(&kernels.clone().with_tuning(Tuning::off()), problem);
    }
    let (device, nothing) = (kernels.device(), GemmOverrides::default());
    let arch = device.choice().arch;
    plan(shape, format, activations, arch, device.properties(), &nothing).expect("a plan")
}

/// The same kernels with a table of these entries.
fn with<'a>(
    kernels: &Kernels,
    entries: impl IntoIterator<Item = (TuneProblem, &'a str, Split)>,
) -> Kernels {
    let mut table = Table::new(kernels.tune_key().clone());
    for (problem, kernel, split) in entries {
        table.insert(problem, measured(kernel, split, 12_345));
    }
    kernels.clone().with_tuning(Tuning::new(table))
}

/// A candidate that the model does not choose.
fn another(kernels: &Kernels, problem: &TuneProblem) -> (&'static str, Split) {
    let last = by_model(kernels, problem).candidates.last().cloned().expect("candidates");
    (last.kernel, last.split)
}

fn says(plan: &GemmPlan, words: &str) {
    assert!(plan.why.iter().any(|why| why.contains(words)), "{plan} lacks {words:?}");
}

/// A plan is the same for all floats. One for NVFP4 says what that takes, and reckons with it.
#[test]
fn results_are_part_of_the_cost() {
    let folder = Folder::new("tune-results");
    for machine in MACHINES {
        let kernels = kernels(&folder, machine);
        for (m, n, k) in [(1, 7168, 2048), (128, 4096, 7168), (4096, 4096, 256)] {
            let problem = nvfp4(m, n, k);
            let plan = |output: Output| {
                let TuneProblem { shape, format, activations, .. } = problem;
                let options = GemmOptions::new().output(output);
                plan_for(&kernels, shape, format, activations, &options)
            };
            let floats = FloatType::ALL.map(|floats| plan(floats.into()).expect("a plan"));
            assert!(floats.iter().all(|plan| *plan == floats[0]), "{}", floats[0]);
            assert!(!floats[0].explain().contains("result"), "{}", floats[0].explain());
            assert_eq!(floats[0], by_model(&kernels, &problem));

            for (layout, padded) in
                [(ScaleLayout::Linear, m), (ScaleLayout::Blocked128x4, m.next_multiple_of(128))]
            {
                let blocks = plan(Output::Nvfp4 { scale: 1.0, layout }).expect("a plan");
                let bytes = m * n / 2 + padded * n / 16;
                let says = format!(
                    "result: a result in nvfp4: {bytes} bytes instead of {} in f16; ",
                    2 * m * n
                );
                assert!(blocks.explain().contains(&says), "{}", blocks.explain());
                assert_eq!(blocks.candidates.len(), floats[0].candidates.len());
                assert_ne!(blocks.candidates, floats[0].candidates);
            }
        }
        let TuneProblem { shape, format, activations, .. } = nvfp4(8, 24, 64);
        let output = Output::Nvfp4 { scale: 1.0, layout: ScaleLayout::Linear };
        let options = GemmOptions::new().output(output);
        let error = plan_for(&kernels, shape, format, activations, &options);
        let text = error.expect_err("half a block").to_string();
        assert_eq!(text, "N must be a multiple of 16 for a result in nvfp4, but is 24");
    }
}

#[test]
fn an_entry_is_taken() {
    let folder = Folder::new("tune-taken");
    for machine in MACHINES {
        let kernels = kernels(&folder, machine);
        let problem = nvfp4(128, 7168, 2048);
        let (kernel, split) = another(&kernels, &problem);
        let model = planned(&kernels, &problem);
        assert_eq!(
            (model.source, model.kernel),
            (Source::Model, by_model(&kernels, &problem).kernel)
        );
        let tuned = with(&kernels, [(problem, kernel, split)]);
        let plan = planned(&tuned, &problem);
        assert_eq!((plan.kernel, plan.split), (kernel, split), "{plan}");
        assert_eq!(plan.source, Source::Table { m: 128 });
        assert_eq!(plan.candidates, model.candidates);
        says(&plan, "the fastest of those measured with M = 128");
        says(&plan, "the tuning table given: 12.345 us at M = 128; the model has");
        let explained = plan.explain();
        assert!(
            explained.starts_with(&format!("chosen: {kernel}, split {split}, ")),
            "{explained}"
        );
        assert_eq!(explained.lines().count(), 1 + plan.candidates.len());
        let asked = by_override(&tuned, &problem, kernel, split);
        assert_eq!((asked.grid, asked.cluster, asked.tile), (plan.grid, plan.cluster, plan.tile));
        assert_eq!(asked.workspace_bytes, plan.workspace_bytes);
        assert_eq!(asked.before, plan.before);
    }
}

fn by_override(kernels: &Kernels, problem: &TuneProblem, kernel: &str, split: Split) -> GemmPlan {
    let overrides = GemmOverrides::new().kernel(kernel.to_string()).split(split);
    let options = options(problem).overrides(overrides);
    let TuneProblem { shape, format, activations, .. } = *problem;
    plan_for(kernels, shape, format, activations, &options).expect("a plan")
}

/// Anything that differs but M, and M of another class, is another problem.
#[test]
fn only_the_same_problem_counts() {
    let folder = Folder::new("tune-same");
    let kernels = kernels(&folder, MACHINES[0]);
    let problem = nvfp4(40, 7168, 2048);
    let (kernel, split) = another(&kernels, &problem);
    let blocked = ActivationKind::Blocks {
        format: problem.format,
        layout: fp4_formats::ScaleLayout::Blocked128x4,
    };
    let halves = ActivationKind::Halves(fp4_formats::HalfType::F16);
    let GemmShape { m, n, k, l } = problem.shape;
    let sized = |m, n, k, l| TuneProblem { shape: GemmShape { m, n, k, l }, ..problem };
    for other in [
        TuneProblem { activations: blocked, ..problem },
        TuneProblem { activations: halves, ..problem },
        TuneProblem { output: FloatType::F32.into(), ..problem },
        TuneProblem { gated: true, ..problem },
        TuneProblem { adding: Adding::Fast, ..problem },
        sized(m, n + 1, k, l),
        sized(m, n, k + 16, l),
        sized(m, n, k, l + 1),
        sized(32, n, k, l),
        sized(65, n, k, l),
    ] {
        let tuned = with(&kernels, [(other, kernel, split)]);
        let plan = planned(&tuned, &problem);
        assert_eq!(plan.source, Source::Model, "{other}");
        assert_eq!(plan.kernel, by_model(&kernels, &problem).kernel);
        says(&plan, "has nothing for this problem");
    }
    for m in [33, 39, 41, 64] {
        let tuned = with(&kernels, [(sized(m, n, k, l), kernel, split)]);
        let plan = planned(&tuned, &problem);
        assert_eq!((plan.kernel, plan.source), (kernel, Source::Table { m }));
    }
}

/// The classes, written out: last M of each, up to the third of the largest tile.
const CLASSES: [(usize, &[usize]); 2] =
    [(0, &[8, 16, 32, 64, 128, 256, 384]), (1, &[8, 16, 32, 64, 128, 256, 512, 768])];

proptest! {
    /// The nearest measured M of the problem's class is taken, the larger of two; without one, the
    /// model's choice.
    #[test]
    fn the_nearest_of_the_class(
        which in 0usize..2,
        m in 1usize..=384,
        measured in prop::collection::btree_set(1usize..=384, 0..12),
    ) {
        let folder = Folder::new(&format!("tune-nearest-{which}"));
        let (machine, ends) = CLASSES[which];
        let kernels = kernels(&folder, MACHINES[machine]);
        let problem = nvfp4(m, 512, 1024);
        let (kernel, split) = another(&kernels, &problem);
        let entries = measured.iter().map(|&m| (problem.with_tokens(m), kernel, split));
        let plan = planned(&with(&kernels, entries), &problem);

        let class = |m: usize| ends.iter().position(|&end| m <= end);
        let expected = measured
            .iter()
            .rev()
            .filter(|&&other| class(other) == class(m))
            .min_by_key(|other| other.abs_diff(m));
        match expected {
            Some(&expected) => prop_assert_eq!(plan.source, Source::Table { m: expected }),
            None => prop_assert_eq!(plan.source, Source::Model),
        }
    }

    /// Whatever a table says, the plan is one that the model or an override could have made: a
    /// kernel of the problem's formats, and a split of K that it has. A rejected entry is said.
    #[test]
    fn no_table_leads_to_an_unsuitable_kernel(
        which in 0usize..2,
        problem in problems(1usize..400, 1usize..3000, 1usize..80, floats()),
        config in any::<prop::sample::Index>(),
        foreign in any::<bool>(),
        split in splits(11),
    ) {
        let folder = Folder::new(&format!("tune-any-{which}"));
        let kernels = kernels(&folder, MACHINES[which]);
        let sm90 = sm90::CONFIGS.iter().map(|config| config.name);
        let names: Vec<&str> = if (which == 0) == foreign {
            sm100::CONFIGS.iter().map(|config| config.name).collect()
        } else {
            sm90.collect()
        };
        let name = names[config.index(names.len())];
        let tuned = with(&kernels, [(problem, name, split)]);
        let plan = planned(&tuned, &problem);
        let model = by_model(&kernels, &problem);
        let candidate = |plan: &GemmPlan| {
            model.candidates.iter().any(|c| (c.kernel, c.split) == (plan.kernel, plan.split))
        };
        prop_assert!(candidate(&plan), "{} is no candidate", plan);
        let is_one = model.candidates.iter().any(|c| (c.kernel, c.split) == (name, split));
        let table = tuned.tuning().table().expect("in use");
        let checked = check_table(&tuned, table, "t");
        if is_one {
            prop_assert_eq!((plan.kernel, plan.split), (name, split));
            prop_assert!(checked.is_ok());
        } else {
            prop_assert_eq!(plan.source, Source::Model);
            prop_assert_eq!((plan.kernel, plan.split), (model.kernel, model.split));
            prop_assert!(plan.why.iter().any(|why| why.contains("is rejected: ")), "{}", plan);
            let unsuitable = matches!(checked, Err(TuneError::Unsuitable { .. }));
            prop_assert!(unsuitable, "{:?}", checked);
        }
    }
}

#[test]
fn rejected_entries_are_said() {
    let folder = Folder::new("tune-rejected");
    for machine in MACHINES {
        let kernels = kernels(&folder, machine);
        let problem = nvfp4(128, 7168, 2048);
        let model = by_model(&kernels, &problem);
        let suited = model.candidates[0].clone();
        for (kernel, split, words) in [
            ("gemm_of_dreams", Split::None, "kernel must be one of gemm_"),
            (
                MXFP4[usize::from(machine != MACHINES[0])],
                Split::None,
                "kernel must be one of gemm_",
            ),
            (suited.kernel, Split::Cluster(99), "must be "),
        ] {
            let tuned = with(&kernels, [(problem, kernel, split)]);
            let plan = planned(&tuned, &problem);
            assert_eq!((plan.kernel, plan.source), (model.kernel, Source::Model));
            says(&plan, "the tuning table given, entry for M = 128, is rejected: ");
            says(&plan, words);
            let table = tuned.tuning().table().expect("in use");
            let error = check_table(&tuned, table, "t.json").expect_err(kernel).to_string();
            assert!(error.contains("t.json, entry for gemm:128x7168x2048, nvfp4"), "{error}");
        }
    }
}

/// A kernel of each machine for other weights.
const MXFP4: [&str; 2] = ["gemm_sm90_mxfp4_bf16_128x64", "gemm_sm100_mxfp4_128x64"];

#[test]
fn what_is_asked_for_beats_the_table() {
    let folder = Folder::new("tune-asked");
    for machine in MACHINES {
        let kernels = kernels(&folder, machine);
        let problem = nvfp4(128, 7168, 2048);
        let (kernel, split) = another(&kernels, &problem);
        let model = by_model(&kernels, &problem);
        assert_ne!((kernel, split), (model.kernel, model.split));
        let tuned = with(&kernels, [(problem, kernel, split)]);
        let plan = by_override(&tuned, &problem, model.kernel, model.split);
        assert_eq!((plan.kernel, plan.source), (model.kernel, Source::Asked));
        says(&plan, "asked for");
        // It leaves no trace in what is remembered.
        assert_eq!(planned(&tuned, &problem).kernel, kernel);
    }
}

#[test]
fn tables_that_cannot_be_used_are_ignored_with_the_reason() {
    let folder = Folder::new("tune-ignored");
    let kernels = kernels(&folder, MACHINES[0]);
    let problem = nvfp4(128, 7168, 2048);
    let (kernel, split) = another(&kernels, &problem);
    let model = by_model(&kernels, &problem);
    let ignored = |tuning: Tuning, words: &str| {
        let tuned = kernels.clone().with_tuning(tuning);
        assert!(tuned.tuning().table().is_none());
        assert!(tuned.tuning().ignored().is_some_and(|why| why.contains(words)), "{words}");
        let plan = planned(&tuned, &problem);
        assert_eq!((plan.kernel, plan.source), (model.kernel, Source::Model), "{words}");
        says(&plan, "the tuning table is ignored: ");
        says(&plan, words);
    };
    let key = kernels.tune_key().clone();
    let text = |key: DeviceKey| {
        let mut table = Table::new(key);
        table.insert(problem, measured(kernel, split, 1));
        table
    };
    for (other, words) in [
        (DeviceKey { name: "NVIDIA H100".into(), ..key.clone() }, "with device `NVIDIA H100`"),
        (DeviceKey { sms: 114, ..key.clone() }, "with number of SMs `114`"),
        (DeviceKey { driver: "13.1".into(), ..key.clone() }, "with driver `13.1`"),
        (DeviceKey { kernels: "0".into(), ..key.clone() }, "with kernels `0`"),
        (DeviceKey { compute_capability: "10.0".into(), ..key.clone() }, "capability `10.0`"),
    ] {
        ignored(Tuning::new(text(other)), words);
    }

    let path = folder.file("tune.json");
    let named = Location::Named(path.clone());
    ignored(Tuning::at(&named), "cannot read the tuning table");
    for location in [named, Location::Default(path.clone())] {
        let good = text(key.clone()).text();
        for (bytes, words) in [
            (good[..good.len() / 2].to_owned(), "is no tuning table"),
            (good.replacen("\"version\": 4", "\"version\": 7", 1), "of version 7"),
            (good.replacen("linear", "4x128", 1), "unknown layout of scales"),
        ] {
            std::fs::write(&path, bytes).expect("written");
            ignored(Tuning::at(&location), words);
        }
        std::fs::write(&path, &good).expect("written");
        let tuned = kernels.clone().with_tuning(Tuning::at(&location));
        let plan = planned(&tuned, &problem);
        assert_eq!(plan.source, Source::Table { m: 128 });
        says(&plan, &format!("the tuning table {}: ", path.display()));
    }
}

/// Having no table needs no mention in every plan.
#[test]
fn no_table_is_no_remark() {
    let folder = Folder::new("tune-none");
    let kernels = kernels(&folder, MACHINES[0]);
    let problem = nvfp4(128, 7168, 2048);
    let locations =
        [Location::Off, Location::NoFolder, Location::Default(folder.file("none.json"))];
    for location in locations {
        let tuned = kernels.clone().with_tuning(Tuning::at(&location));
        assert!(tuned.tuning().ignored().is_none());
        assert!(tuned.tuning().to_string().starts_with("no tuning table: "), "{location:?}");
        assert_eq!(planned(&tuned, &problem), by_model(&kernels, &problem));
    }
}

/// The file is read when kernels are opened or given a table, never again.
#[test]
fn the_file_is_read_once() {
    let folder = Folder::new("tune-once");
    let kernels = kernels(&folder, MACHINES[0]);
    let path = folder.file("tune.json");
    let (first, second) = (nvfp4(128, 7168, 2048), nvfp4(8, 512, 1024));
    let mut table = Table::new(kernels.tune_key().clone());
    for problem in [first, second] {
        let (kernel, split) = another(&kernels, &problem);
        table.insert(problem, Measured { kernel: kernel.into(), split, median_ns: 5 });
    }
    tune::write(&path, &table).expect("written");
    let tuned = kernels.clone().with_tuning(Tuning::from_file(&path).expect("a table"));
    let before = planned(&tuned, &first);
    std::fs::write(&path, "damage").expect("written");
    assert_eq!(planned(&tuned, &first), before);
    std::fs::remove_file(&path).expect("removed");
    assert_eq!(planned(&tuned, &second).source, Source::Table { m: 8 });
    assert_eq!(tuned.clone().tuning().table(), Some(&table));
}

/// Planning is only that, so that it may happen while a stream is recorded: nothing is launched,
/// allocated or measured, and no file is made or changed, whether there is a table for the problem, none,
/// or a damaged one.
#[test]
fn planning_measures_nothing_and_touches_no_file() {
    for machine in MACHINES {
        let folder = Folder::new("tune-planning");
        let path = folder.file("tune.json");
        let bundles = folder.file("bundles");
        // A device that writes each launch as a bundle.
        no_kernels(&folder, machine);
        let device = Device::open(&machine.0.parse().expect("known")).expect("opens");
        let device = device.with_capture(&bundles);
        let kernels =
            device.kernels(Some(folder.path())).expect("loads").with_tuning(Tuning::off());
        let (known, unknown) = (nvfp4(128, 7168, 2048), nvfp4(8, 512, 1024));
        let mut table = Table::new(kernels.tune_key().clone());
        let (kernel, split) = another(&kernels, &known);
        table.insert(known, Measured { kernel: kernel.into(), split, median_ns: 5 });
        for (text, source) in [
            (Some(table.text()), Source::Table { m: 128 }),
            (None, Source::Model),
            (Some("{".into()), Source::Model),
        ] {
            match &text {
                Some(text) => std::fs::write(&path, text).expect("written"),
                None => std::fs::remove_file(&path).expect("removed"),
            }
            let tuning = Tuning::at(&Location::Named(path.clone()));
            let tuned = kernels.clone().with_tuning(tuning);
            let state = || {
                let changed = std::fs::metadata(&path).and_then(|file| file.modified()).ok();
                (folder.names(), std::fs::read_to_string(&path).ok(), changed)
            };
            let before = (state(), device.allocations());
            assert_eq!(planned(&tuned, &known).source, source);
            assert_eq!(planned(&tuned, &unknown).source, Source::Model);
            assert_eq!((state(), device.allocations()), before);
            assert_eq!(before.0.1, text);
        }
        assert_eq!(device.capture().expect("asked for").launches(), 0);
        assert!(!bundles.exists());
    }
}

/// More problems than plans are remembered, twice: each plan is that of its problem.
#[test]
fn plans_are_remembered_for_their_problems() {
    let folder = Folder::new("tune-remembered");
    let kernels = kernels(&folder, MACHINES[0]);
    let problem = |index: usize| nvfp4(1 + index % 7, 8 * (1 + index / 7), 1024);
    let (kernel, split) = another(&kernels, &problem(0));
    let entries = (0..MAX_PLANS + 40).step_by(3).map(|index| (problem(index), kernel, split));
    let tuned = with(&kernels, entries);
    for _ in 0..2 {
        for index in 0..MAX_PLANS + 40 {
            let (problem, plan) = (problem(index), planned(&tuned, &problem(index)));
            // CTAs that share activations come together.
            let multicast = (plan.cluster / plan.split.cluster()) as usize;
            let tiles = problem.shape.n.div_ceil(plan.tile[0] as usize * multicast) * multicast;
            let steps = problem.shape.k.div_ceil(sm90::config::K_STEP as usize);
            let ctas = match plan.split {
                Split::StreamK => (tiles * steps).min(kernels.device().properties().sms as usize),
                Split::None => tiles,
                Split::Cluster(ctas) => tiles * ctas as usize,
            };
            assert_eq!(plan.grid[0] as usize, ctas, "{problem}: {plan}");
            if index.is_multiple_of(3) {
                assert_eq!(plan.source, Source::Table { m: problem.shape.m }, "{problem}");
            }
        }
    }
}

/// One handle keeps problems apart that differ in one thing only, whichever is planned first.
#[test]
fn what_is_remembered_is_not_mixed_up() {
    let folder = Folder::new("tune-mixed");
    let kernels = kernels(&folder, MACHINES[0]);
    let problem = nvfp4(40, 512, 1024);
    let halves = ActivationKind::Halves(fp4_formats::HalfType::F16);
    let blocked = ActivationKind::Blocks {
        format: problem.format,
        layout: fp4_formats::ScaleLayout::Blocked128x4,
    };
    let GemmShape { m, n, k, l } = problem.shape;
    let sized = |m, n, k, l| TuneProblem { shape: GemmShape { m, n, k, l }, ..problem };
    let all = [
        problem,
        TuneProblem { activations: halves, ..problem },
        TuneProblem { activations: blocked, ..problem },
        TuneProblem { output: FloatType::F32.into(), ..problem },
        TuneProblem { gated: true, ..problem },
        TuneProblem { adding: Adding::Fast, ..problem },
        TuneProblem { output: FloatType::Bf16.into(), ..problem },
        sized(130, n, k, l),
        sized(m, n + 8, k, l),
        sized(m, n, k + 128, l),
        sized(m, n, k, l + 1),
    ];
    let (kernel, split) = another(&kernels, &problem);
    for only in &all {
        let tuned = with(&kernels, [(*only, kernel, split)]);
        for _ in 0..2 {
            for asked in &all {
                let from_table = planned(&tuned, asked).source != Source::Model;
                assert_eq!(from_table, asked == only, "{asked}; the table has {only}");
            }
        }
    }
}

/// Errors of the problem itself stay errors, whatever the table says.
#[test]
fn bad_problems_are_refused_with_a_table_too() {
    let folder = Folder::new("tune-bad");
    let kernels = kernels(&folder, MACHINES[0]);
    let problem = nvfp4(128, 7168, 24);
    let tuned = with(&kernels, [(problem, "gemm_sm90_nvfp4_f16_128x8", Split::None)]);
    let TuneProblem { shape, format, activations, .. } = problem;
    let error = plan_for(&tuned, shape, format, activations, &options(&problem));
    let error = error.expect_err("no multiple of 16").to_string();
    assert!(error.contains("K must be a multiple of 16, but is 24"), "{error}");
}
