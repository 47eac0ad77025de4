//! A line on the terminal that says what a long command is doing; nothing where stderr is no
//! terminal.

use std::time::Duration;

use indicatif::ProgressBar;

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

    /// Runs `f`, which prints, without the line in its way.
    pub fn suspend<T>(&self, f: impl FnOnce() -> T) -> T {
        self.0.suspend(f)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
