//! `ptx-emu exec --explore N`: a program under many schedules.

use super::super::explore::command_line;
use super::{ExecArgs, Ran, checks, console, execute, exit_code, named};
use crate::cli::program::{self, ProgramError, Streams};
use ptx_emu::Schedule;
use ptx_emu::explore::schedules;
use ptx_emu::sarif::{Fault, Log};

/// Runs the program under schedules up to the first that goes wrong; the exit code.
pub(super) fn run(args: &ExecArgs, seeds: u64, log: &mut Log) -> Result<u8, ProgramError> {
    // Standard output under `eager`, if others are compared with it.
    let mut expected: Option<Vec<u8>> = None;
    let (mut passed, mut launches) = (0, 0);
    for schedule in schedules(seeds) {
        let ran = execute(args, schedule, Streams::Kept)?;
        let first = passed == 0;
        if first {
            launches = ran.told.launches;
            console::bytes(&ran.printed);
        }
        let mut difference = expected.as_deref().and_then(|text| differs(text, &ran.printed[0]));
        if difference.is_some() && !same_each_time(args, expected.as_deref())? {
            console::complain(
                "standard output differs between two runs under eager: it is not compared",
            );
            (expected, difference) = (None, None);
        }
        let code = exit_code(ran.status, &ran.told);
        let before = log.len();
        let replay = command_line(std::env::args(), schedule);
        ran.add(log, named(args), Some(&replay));
        let wrong = code != 0 || difference.is_some();
        // The messages of `eager` are there already; those of others say something new with a finding.
        if !first && (wrong || log.len() > before) {
            console::bytes(&[Vec::new(), ran.printed[1].clone()]);
        }
        if wrong {
            if let Some(difference) = &difference {
                let text = format!("under schedule {schedule} {difference}\nReplay: {replay}");
                log.fault(Fault::Outputs, &text, named(args));
            }
            report(args, &ran, schedule, passed, difference.as_deref());
            console::complain(format_args!("replay: {replay}"));
            let explained =
                schedule == Schedule::Eager && ran.told.denied == 0 && explain(args, log)?;
            return Ok(if explained { 1 } else { code.max(1) });
        }
        if first && !args.allow_different {
            let [printed, _] = ran.printed;
            expected = Some(printed);
        }
        passed += 1;
    }
    console::complain(format_args!(
        "`{}` ran under {passed} schedules: nothing went wrong; {launches} launches emulated in each",
        named(args).display()
    ));
    let tried = checks::Tried::Many(passed);
    console::complain(checks::not_looked_for(tried, args.checks.model()));
    Ok(0)
}

/// Looks for a finding under `lazy`, since races are not looked for under `eager`; whether one is denied.
fn explain(args: &ExecArgs, log: &mut Log) -> Result<bool, ProgramError> {
    let ran = execute(args, Schedule::Lazy, Streams::Kept)?;
    if ran.told.denied == 0 {
        return Ok(false);
    }
    let replay = command_line(std::env::args(), Schedule::Lazy);
    ran.add(log, named(args), Some(&replay));
    console::bytes(&[Vec::new(), ran.printed[1].clone()]);
    console::complain(format_args!(
        "races are not looked for under eager; findings under lazy: {} errors, which may be why",
        ran.told.denied
    ));
    console::complain(format_args!("replay: {replay}"));
    Ok(true)
}

/// Says how a run went wrong.
fn report(args: &ExecArgs, ran: &Ran, schedule: Schedule, passed: u64, difference: Option<&str>) {
    let mut faults = vec![ran.told.summary()];
    let missing = ran.told.refused + ran.told.lost;
    if missing > 0 {
        faults.push(format!("{missing} launches did not run"));
    }
    match program::exit_code(ran.status) {
        0 => {}
        code => faults.push(format!("the program's exit code is {code}")),
    }
    faults.extend(difference.map(str::to_owned));
    console::complain(format_args!(
        "`{}` goes wrong under schedule {schedule} ({passed} passed before): {}",
        named(args).display(),
        faults.join("; ")
    ));
}

/// Whether the program prints the same under `eager` again.
fn same_each_time(args: &ExecArgs, expected: Option<&[u8]>) -> Result<bool, ProgramError> {
    let again = execute(args, Schedule::Eager, Streams::Kept)?;
    Ok(expected == Some(&again.printed[0]))
}

/// The first difference between standard outputs, in words.
fn differs(expected: &[u8], actual: &[u8]) -> Option<String> {
    if expected == actual {
        return None;
    }
    let [expected, actual] = [expected, actual].map(String::from_utf8_lossy);
    let lines = |text: &'_ str| text.split('\n').map(str::to_owned).collect::<Vec<_>>();
    let (there, here) = (lines(&expected), lines(&actual));
    let count = there.len().max(here.len());
    let line = |all: &[String], at: usize| {
        all.get(at).map_or_else(|| "no line".to_owned(), |line| format!("`{line}`"))
    };
    // Bytes that are no text may differ where the text does not.
    let at = (0..count).find(|&at| there.get(at) != here.get(at)).unwrap_or(0);
    Some(format!(
        "standard output differs from that under eager in line {}: {} there, {} here",
        at + 1,
        line(&there, at),
        line(&here, at)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_differences() {
        assert_eq!(differs(b"a\nb\n", b"a\nb\n"), None);
        let said = differs(b"a\nb\n", b"a\nc\n").expect("a difference");
        assert!(said.ends_with("in line 2: `b` there, `c` here"), "{said}");
        let said = differs(b"a", b"a\nc").expect("a difference");
        assert!(said.ends_with("in line 2: no line there, `c` here"), "{said}");
        assert!(differs(b"\xff", b"\xfe").is_some());
    }
}
