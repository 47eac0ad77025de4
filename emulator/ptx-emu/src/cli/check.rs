//! `ptx-emu check`.

mod targets;

use super::error::CliError;
use super::run::{self, MachineArgs};
use super::{console, report};
use clap::Args;
use ptx_emu::{Examination, Examined, Gpu, KernelInfo, LoadError, Unsupported, readable_name};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Says which kernels of a PTX module the emulator runs, with their parameters, and what
/// is not modelled of the others.
///
/// A kernel is looked at with the device functions that it reaches, and by itself: what
/// another kernel needs does not matter. Exit code 0 if all kernels load, or the one that
/// `--entry` names; 2 otherwise.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// PTX module.
    module: PathBuf,
    /// Look at one kernel alone.
    #[arg(long, value_name = "NAME")]
    entry: Option<String>,
    #[command(flatten)]
    machine: MachineArgs,
    /// List the targets that the module could name, each with the oldest version of PTX in which it
    /// loads, the CUDA release that brought that and its driver, or with what the target lacks.
    /// `.version` and `.target` of the module do not matter.
    #[arg(long, conflicts_with = "gpu")]
    targets: bool,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// Returns the text for standard output, and the exit code.
pub(crate) fn run(args: &CheckArgs) -> (Option<String>, u8) {
    if args.targets {
        return targets::run(&args.module, args.entry.as_deref(), args.json);
    }
    match examine(args) {
        Ok((gpu, found)) => {
            let show = if args.json { as_json } else { as_text };
            let all = found.entries.iter().all(Examined::loads);
            (Some(show(args, &gpu, &found)), if all { 0 } else { 2 })
        }
        Err(error) => {
            console::complain(&error);
            (args.json.then(|| report::failure(&error, None)), error.exit_code())
        }
    }
}

fn examine(args: &CheckArgs) -> Result<(Gpu, Examination), CliError> {
    let text = run::read_text(&args.module)?;
    let gpu = args.machine.machine(&text);
    let refused = |error| run::refused(&args.module, &text, error);
    let mut found = ptx_emu::examine(&text, &gpu, args.entry.as_deref()).map_err(refused)?;
    // A fault of the whole module is reported once.
    let whole = found.entries.iter().position(|entry| {
        matches!(
            entry.outcome,
            Err(LoadError::Target { .. }
                | LoadError::Version { .. }
                | LoadError::AddressSize { .. }
                | LoadError::Syntax(_))
        )
    });
    if let Some(at) = whole
        && let Err(error) = found.entries.swap_remove(at).outcome
    {
        return Err(refused(error));
    }
    Ok((gpu, found))
}

/// Machines that run a module.
fn machines(found: &Examination) -> Vec<&'static str> {
    let target = found.targets.first().map_or("", String::as_str);
    Gpu::ALL.iter().filter(|gpu| gpu.accepts(target)).map(|gpu| gpu.name).collect()
}

fn as_text(args: &CheckArgs, gpu: &Gpu, found: &Examination) -> String {
    let (major, minor) = found.version;
    let mut text = format!(
        "{}: PTX {major}.{minor} for {}, looked at as {}; runs on {}",
        args.module.display(),
        found.targets.join(", "),
        gpu.name,
        machines(found).join(", ")
    );
    if found.entries.is_empty() {
        text.push_str("\nno kernel");
    }
    for entry in &found.entries {
        let name = readable_name(&entry.name);
        let _ = match &entry.outcome {
            Err(error) => write!(text, "\n`{name}` does not load: {error}"),
            Ok((kernel, unsupported)) => {
                let verdict = match unsupported.len() {
                    0 => "loads".to_owned(),
                    1 => "does not load: 1 instruction is not supported".to_owned(),
                    many => format!("does not load: {many} instructions are not supported"),
                };
                let _ = write!(text, "\n`{name}` {verdict}");
                properties(&mut text, kernel);
                unsupported.iter().try_for_each(|item| write!(text, "\n  {item}"))
            }
        };
    }
    text
}

/// Prints the properties that a launch of the kernel needs.
fn properties(text: &mut String, kernel: &KernelInfo) {
    let size = |[x, y, z]: [u32; 3]| format!("{x},{y},{z}");
    let mut facts = Vec::new();
    facts.extend(kernel.reqntid.map(|block| format!("--block {} (.reqntid)", size(block))));
    facts.extend(kernel.maxntid.map(|block| format!("at most {} threads (.maxntid)", size(block))));
    facts.extend(kernel.cluster.map(|cluster| format!("clusters of {}", size(cluster))));
    if kernel.static_shared != 0 {
        facts.push(format!("{} bytes of static shared memory", kernel.static_shared));
    }
    if kernel.dynamic_shared {
        facts.push("dynamic shared memory (--dynamic-smem)".to_owned());
    }
    if !facts.is_empty() {
        let _ = write!(text, "\n  {}", facts.join(", "));
    }
    for param in &kernel.params {
        let pointer = if param.pointer { ", a pointer" } else { "" };
        let _ = write!(
            text,
            "\n  {}: .{}{pointer}, {} bytes at {}",
            param.name, param.ty, param.size, param.offset
        );
    }
}

fn as_json(args: &CheckArgs, gpu: &Gpu, found: &Examination) -> String {
    let (major, minor) = found.version;
    json!({
        "module": args.module.display().to_string(),
        "version": format!("{major}.{minor}"),
        "targets": found.targets,
        "gpu": gpu.name,
        "runs_on": machines(found),
        "entries": found.entries.iter().map(entry).collect::<Vec<_>>(),
    })
    .to_string()
}

fn entry(entry: &Examined) -> Value {
    let mut value = json!({ "name": entry.name, "loads": entry.loads() });
    match &entry.outcome {
        Err(error) => value["error"] = json!(error.to_string()),
        Ok((kernel, unsupported)) => {
            value["reqntid"] = json!(kernel.reqntid);
            value["maxntid"] = json!(kernel.maxntid);
            value["cluster"] = json!(kernel.cluster);
            value["static_shared"] = json!(kernel.static_shared);
            value["dynamic_shared"] = json!(kernel.dynamic_shared);
            let parameters = kernel.params.iter().map(|param| {
                json!({
                    "name": param.name,
                    "type": param.ty,
                    "pointer": param.pointer,
                    "bytes": param.size,
                    "offset": param.offset,
                })
            });
            value["parameters"] = parameters.collect();
            value["unsupported"] = unsupported.iter().map(not_modelled).collect();
        }
    }
    value
}

fn not_modelled(item: &Unsupported) -> Value {
    json!({ "line": item.line, "instruction": item.instruction, "why": item.why })
}
