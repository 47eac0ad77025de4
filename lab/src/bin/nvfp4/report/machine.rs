//! A report's facts about the machine and the program.

use std::time::{SystemTime, UNIX_EPOCH};

use nvfp4::device::{Choice, Kernels};

use super::document::About;
use super::history::utc;

/// The commit that the program was built from, where the build was told: `cargo xtask` does.
const COMMIT: Option<&str> = option_env!("NVFP4_COMMIT");

impl About {
    /// Describes the running program and its machine.
    pub fn this(kernels: &Kernels) -> Self {
        let Choice { device, name, arch, .. } = kernels.device().choice().clone();
        let key = kernels.tune_key();
        let info = kernels.device().gpu("describing").ok().map(|gpu| gpu.info().clone());
        let megahertz = |khz: u32| Some(khz / 1000).filter(|mhz| *mhz > 0);
        let driver = match &info {
            Some(_) => format!("CUDA {}", key.driver),
            None => "none: emulated".to_owned(),
        };
        Self {
            file: None,
            date: now(),
            device: Some(device),
            gpu: Some(name),
            arch: Some(arch.to_string()),
            driver: Some(driver),
            sms: Some(key.sms),
            sm_clock_mhz: info.as_ref().and_then(|info| megahertz(info.clock_khz)),
            memory_clock_mhz: info.as_ref().and_then(|info| megahertz(info.memory_clock_khz)),
            host: Some(host()),
            program: Some(format!("nvfp4 {}", env!("CARGO_PKG_VERSION"))),
            commit: Some(COMMIT.unwrap_or("unknown").to_owned()),
            kernels: Some(key.kernels.clone()),
            command: Some(command(std::env::args())),
        }
    }
}

fn now() -> Option<String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(utc(since.as_secs()))
}

/// Processor, its threads, and the system.
fn host() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor(&text).unwrap_or(std::env::consts::ARCH);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{processor}, {threads} threads, {}", std::env::consts::OS)
}

/// The model's name in `/proc/cpuinfo`.
fn processor(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim()).filter(|name| !name.is_empty())
}

/// The command line as a shell takes it; of the program its name alone.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=*".contains(c);
    let quoted = arguments.skip(1).map(|argument| match argument.chars().all(plain) {
        true if !argument.is_empty() => argument,
        _ => format!("'{}'", argument.replace('\'', r"'\''")),
    });
    std::iter::once("nvfp4".to_owned()).chain(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_repeated() {
        let arguments = ["/a/nvfp4", "bench", "--shape", "gemm:1x2x16", "--report", "a b'c", ""];
        let line = command(arguments.into_iter().map(str::to_owned));
        assert_eq!(line, r"nvfp4 bench --shape gemm:1x2x16 --report 'a b'\''c' ''");
    }

    #[test]
    fn processors_have_names_or_none() {
        assert_eq!(processor("processor\t: 0\nmodel name\t: A CPU\n"), Some("A CPU"));
        assert_eq!(processor("processor\t: 0\nmodel name\t:\n"), None);
        assert_eq!(processor(""), None);
    }
}
