//! A line on the terminal with the progress of a long command; nothing if stderr is not a terminal.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use nvfp4::checkpoint::Observer;

pub struct Progress(ProgressBar);

impl Progress {
    pub fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(bar)
    }

    pub fn step(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
    }

    /// Hides the line while `f` prints.
    pub fn suspend<T>(&self, f: impl FnOnce() -> T) -> T {
        self.0.suspend(f)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Whether Ctrl-C has been pressed.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// A progress bar over the bytes of a checkpoint. While it exists, Ctrl-C ends the operation after
/// the current tensor and removes the incomplete output; a second Ctrl-C ends the program
/// immediately.
pub struct Bar(ProgressBar);

impl Bar {
    pub fn new() -> Self {
        let bar = ProgressBar::new(0);
        let style = "{msg:.40!} [{wide_bar}] {bytes} of {total_bytes}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        // Without the handler, Ctrl-C ends the program as usual.
        let _ = ctrlc::set_handler(|| {
            const BY_INTERRUPT: i32 = 130;
            if INTERRUPTED.swap(true, Ordering::Relaxed) {
                std::process::exit(BY_INTERRUPT);
            }
        });
        Self(bar)
    }
}

impl Observer for Bar {
    fn begin(&mut self, bytes: u64) {
        self.0.set_length(bytes);
    }

    fn tensor(&mut self, name: &str) {
        self.0.set_message(name.to_owned());
    }

    fn done(&mut self, bytes: u64) {
        self.0.inc(bytes);
    }

    fn cancelled(&self) -> bool {
        INTERRUPTED.load(Ordering::Relaxed)
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
