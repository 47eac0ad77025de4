//! The progress of commands, on stderr.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use nvfp4_checkpoint::Observer;

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

/// The progress of long work of a known number of steps: a bar if stderr is a terminal, else a line for
/// each step.
pub struct Steps {
    bar: ProgressBar,
    begun: Cell<usize>,
    total: usize,
}

impl Steps {
    pub fn new(total: usize) -> Self {
        let bar = ProgressBar::new(total as u64);
        if let Ok(style) = ProgressStyle::with_template("[{bar:30}] {pos} of {len} {wide_msg}") {
            bar.set_style(style);
        }
        Self { bar, begun: Cell::new(0), total }
    }

    /// A step begins; the one before has ended.
    pub fn step(&self, what: impl Into<String>) {
        let (what, begun) = (what.into(), self.begun.get() + 1);
        self.begun.set(begun);
        if self.bar.is_hidden() {
            // Nobody may be reading.
            let _ = writeln!(io::stderr(), "{begun} of {}: {what}", self.total);
        }
        self.bar.set_position(begun as u64 - 1);
        self.bar.set_message(what);
    }

    /// Hides the bar while `f` prints.
    pub fn suspend<T>(&self, f: impl FnOnce() -> T) -> T {
        self.bar.suspend(f)
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The signals after which an operation ends in an orderly way: Ctrl-C's, and that of `kill` and of
/// service managers.
const ENDING: [i32; 2] = [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM];
/// Exit codes of programs that signals have ended begin here.
const BY_SIGNAL: i32 = 128;

/// The last of these signals; 0 if there was none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// The exit code of a program that a signal has ended, if one has asked this program to end.
pub fn signalled() -> Option<u8> {
    let signal = SIGNAL.load(Ordering::Relaxed);
    (signal != 0).then(|| u8::try_from(BY_SIGNAL + signal).unwrap_or(u8::MAX))
}

/// Notes the signals from here on; the second one ends the program immediately.
fn note_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in ENDING {
            let action = move || {
                if SIGNAL.swap(signal, Ordering::Relaxed) != 0 {
                    signal_hook::low_level::exit(BY_SIGNAL + signal);
                }
            };
            // SAFETY: the action does only what a handler of signals may: an atomic exchange, and
            // ending the program.
            let registered = unsafe { signal_hook::low_level::register(signal, action) };
            // Without the handler, the signal ends the program as usual.
            drop(registered);
        }
    });
}

/// A progress bar over the bytes of a checkpoint. While it exists, Ctrl-C and SIGTERM end the
/// operation after the current tensor and remove the incomplete output; a second signal ends the
/// program immediately.
pub struct Bar(ProgressBar);

impl Bar {
    pub fn new() -> Self {
        let bar = ProgressBar::new(0);
        let style = "{msg:.40!} [{wide_bar}] {bytes} of {total_bytes}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        note_signals();
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
        signalled().is_some()
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
