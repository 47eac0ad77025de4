//! The progress of a build of kernels: a bar if standard error is a terminal, otherwise a line for
//! each module.

use std::sync::Mutex;

use indicatif::{ProgressBar, ProgressStyle};
use nvfp4_kernels_build::Progress;

/// The bar of the stage that is under way.
#[derive(Default)]
pub struct Bar(Mutex<Option<Stage>>);

struct Stage {
    bar: ProgressBar,
    modules: usize,
    ready: usize,
}

impl Bar {
    /// Shows what has happened.
    pub fn show(&self, progress: Progress<'_>) {
        // A thread that panicked while it drew leaves a bar that others can go on with.
        let mut stage = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(line) = follow(&mut stage, progress, ProgressBar::new) {
            note!("{line}");
        }
    }
}

/// Moves the bar of `stage`, made by `bar` for so many modules, and gives the line to be printed.
fn follow(
    stage: &mut Option<Stage>,
    progress: Progress<'_>,
    bar: impl Fn(u64) -> ProgressBar,
) -> Option<String> {
    match progress {
        Progress::Begin { stage: name, modules } => {
            let bar = bar(modules as u64);
            let style = "[{bar:30}] {pos} of {len}, {elapsed} {wide_msg}";
            if let Ok(style) = ProgressStyle::with_template(style) {
                bar.set_style(style);
            }
            *stage = Some(Stage { bar, modules, ready: 0 });
            Some(format!("{name}: {modules} modules"))
        }
        Progress::Ready { arch, family } => {
            let stage = stage.as_mut()?;
            stage.ready += 1;
            stage.bar.set_message(format!("{arch}/{family}"));
            stage.bar.set_position(stage.ready as u64);
            let line = || format!("{} of {}: {arch}/{family}", stage.ready, stage.modules);
            stage.bar.is_hidden().then(line)
        }
        Progress::End { summary } => {
            if let Some(stage) = stage.take() {
                stage.bar.finish_and_clear();
            }
            Some(summary.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Stage, follow};
    use fp4_formats::{Arch, Family};
    use indicatif::{InMemoryTerm, ProgressBar, ProgressDrawTarget};
    use nvfp4_kernels_build::Progress;

    /// A build of two modules, seen on this kind of bar; what is printed, and `look` after the first
    /// module.
    fn build(bar: impl Fn(u64) -> ProgressBar, look: impl Fn()) -> Vec<Option<String>> {
        let mut stage: Option<Stage> = None;
        let mut lines = Vec::new();
        let ready = |family| Progress::Ready { arch: Arch::Sm90a, family };
        let events = [
            Progress::Begin { stage: "compiling", modules: 2 },
            ready(Family::Gemv),
            ready(Family::Moe),
            Progress::End { summary: "compiled 2 modules" },
        ];
        for (index, event) in events.into_iter().enumerate() {
            lines.push(follow(&mut stage, event, &bar));
            if index == 1 {
                look();
            }
        }
        lines
    }

    #[test]
    fn modules_are_lines_where_there_is_no_terminal() {
        let lines = build(|_| ProgressBar::hidden(), || ());
        let expected = [
            "compiling: 2 modules",
            "1 of 2: sm_90a/gemv",
            "2 of 2: sm_90a/moe",
            "compiled 2 modules",
        ];
        assert_eq!(lines, expected.map(|line| Some(line.to_owned())));
    }

    #[test]
    fn modules_move_a_bar_on_a_terminal() {
        let terminal = InMemoryTerm::new(10, 80);
        let target = || ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let lines = build(
            |modules| ProgressBar::with_draw_target(Some(modules), target()),
            || assert!(terminal.contents().contains("1 of 2"), "{}", terminal.contents()),
        );
        assert_eq!(
            lines,
            [Some("compiling: 2 modules".into()), None, None, Some("compiled 2 modules".into())]
        );
        assert_eq!(terminal.contents(), "", "the bar is gone");
    }
}
