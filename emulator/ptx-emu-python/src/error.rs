//! Exceptions: the library's errors, by the same names where Python does not use them itself.

use crate::finding::Finding;
use crate::run::Result as RunResult;
use ptx_emu::bundle::BundleError as RustBundleError;
use ptx_emu::{
    Diagnostic, LaunchError as RustLaunchError, LoadError as RustLoadError, MemoryError,
};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyOSError};
use pyo3::prelude::*;
use std::io;
use std::path::Path;

create_exception!(ptx_emu, Error, PyException, "Base class of this module's exceptions.");
create_exception!(
    ptx_emu,
    ArgumentError,
    Error,
    "A Python value that is not what a function or the kernel takes.

Attributes: `field` (such as `grid`, or `args[2]`), `required`, `actual`; of a kernel's argument also
`index` and `parameter`, which are None elsewhere."
);
create_exception!(
    ptx_emu,
    LoadError,
    Error,
    "A module that is refused: not PTX, for another GPU, or with something that is not modelled.

Attributes: `reason` (`syntax`, `target`, `version`, `address-size`, `entry`, `unsupported`, `unknown-symbol`,
`bad-operand` or `bad-declaration`), `line` (of the PTX, or None) and `unsupported` (a list of
`Unsupported`)."
);
create_exception!(
    ptx_emu,
    LaunchError,
    Error,
    "A launch that does not fit the kernel or the GPU.

Attributes: `kernel`, `field` (such as `block`), `required`, `actual`."
);
create_exception!(
    ptx_emu,
    DeviceMemoryError,
    Error,
    "Device memory that cannot be allocated, read or written. The library calls it MemoryError."
);
create_exception!(
    ptx_emu,
    BundleError,
    Error,
    "A folder that is no launch bundle, or cannot be written.

Attributes: `field`, `required`, `actual`, which are None where no field is at fault."
);
create_exception!(
    ptx_emu,
    FindingError,
    Error,
    "A kernel that did something wrong.

Attributes: `finding` (the first denied `Finding`), `findings` (all), `result` (a `Result`)."
);

/// An exception with attributes. One that cannot be set is itself the exception.
fn with<const N: usize>(error: PyErr, attributes: [(&str, Option<String>); N]) -> PyErr {
    Python::attach(|py| {
        let value = error.value(py);
        for (name, attribute) in attributes {
            if let Err(failed) = value.setattr(name, attribute) {
                return failed;
            }
        }
        error
    })
}

/// A value that does not fit, of a keyword or another part of a call.
pub fn bad(field: &str, required: impl Into<String>, actual: impl Into<String>) -> PyErr {
    let (required, actual) = (required.into(), actual.into());
    let message = format!("{field}: required {required}, actual {actual}");
    let error = with(
        ArgumentError::new_err(message),
        [
            ("field", Some(field.to_owned())),
            ("required", Some(required)),
            ("actual", Some(actual)),
            ("parameter", None),
        ],
    );
    index(error, None)
}

/// An argument of the kernel that does not fit; `part` is where in it (`[8]`), or empty.
pub fn bad_argument(
    at: usize,
    parameter: &str,
    part: &str,
    required: impl Into<String>,
    actual: impl Into<String>,
) -> PyErr {
    let (required, actual) = (required.into(), actual.into());
    let field = format!("args[{at}]{part}");
    let message =
        format!("{field} (parameter `{parameter}`): required {required}, actual {actual}");
    let error = with(
        ArgumentError::new_err(message),
        [
            ("field", Some(field)),
            ("required", Some(required)),
            ("actual", Some(actual)),
            ("parameter", Some(parameter.to_owned())),
        ],
    );
    index(error, Some(at))
}

fn index(error: PyErr, at: Option<usize>) -> PyErr {
    Python::attach(|py| match error.value(py).setattr("index", at) {
        Ok(()) => error,
        Err(failed) => failed,
    })
}

/// Returns a short form of a value and its type, for messages.
pub fn shown(value: &Bound<'_, PyAny>) -> String {
    const LONGEST: usize = 60;
    let name =
        value.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
    let Ok(text) = value.repr().and_then(|text| text.extract::<String>()) else {
        return name;
    };
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{name} {}...", &text[..end]),
        None => format!("{name} {text}"),
    }
}

/// A file that cannot be read or written, as Python reports it.
pub fn file(path: &Path, error: &io::Error) -> PyErr {
    // With three arguments, OSError becomes FileNotFoundError and the like.
    match error.raw_os_error() {
        Some(code) => PyOSError::new_err((code, error.to_string(), path.display().to_string())),
        None => PyOSError::new_err(format!("{}: {error}", path.display())),
    }
}

/// A module that is refused; `text` is its PTX.
pub fn load(error: &RustLoadError, text: &str) -> PyErr {
    let (reason, line) = match error {
        RustLoadError::Syntax(error) => ("syntax", Some(error.pos.line)),
        RustLoadError::Target { .. } => ("target", None),
        RustLoadError::Version { .. } => ("version", None),
        RustLoadError::AddressSize { .. } => ("address-size", None),
        RustLoadError::StaticShared { .. } => ("static-shared", None),
        RustLoadError::Entry { .. } => ("entry", None),
        RustLoadError::Unsupported(items) => ("unsupported", items.first().map(|item| item.line)),
        RustLoadError::UnknownSymbol { line, .. } => ("unknown-symbol", Some(*line)),
        RustLoadError::BadOperand { line, .. } => ("bad-operand", Some(*line)),
        RustLoadError::BadDeclaration { line, .. } => ("bad-declaration", Some(*line)),
        _ => ("other", None),
    };
    let message = match error {
        RustLoadError::Syntax(error) => format!("line {}", error.render(text).trim_end()),
        error => error.to_string(),
    };
    let items = match error {
        RustLoadError::Unsupported(items) => items.as_slice(),
        _ => &[],
    };
    let raised = LoadError::new_err(message);
    let set = Python::attach(|py| {
        let value = raised.value(py);
        value.setattr("reason", reason)?;
        value.setattr("line", line)?;
        value.setattr("unsupported", crate::examination::unsupported(py, items)?)
    });
    set.map_or_else(|failed| failed, |()| raised)
}

/// A refused allocation.
pub fn memory(error: &MemoryError) -> PyErr {
    DeviceMemoryError::new_err(error.to_string())
}

/// A launch that was refused. Faults of the kernel are raised by [`found`].
pub fn launch(error: &RustLaunchError) -> PyErr {
    let (kernel, fields) = match error {
        RustLaunchError::BadLaunch { kernel, field, required, actual } => {
            (kernel, [Some((*field).to_owned()), Some(required.clone()), Some(actual.clone())])
        }
        RustLaunchError::Memory { .. } => return DeviceMemoryError::new_err(error.to_string()),
        RustLaunchError::Coverage { kernel, .. } => (kernel, [None, None, None]),
        RustLaunchError::Diagnostic(found) => (&found.kernel, [None, None, None]),
        error => return LaunchError::new_err(error.to_string()),
    };
    let [field, required, actual] = fields;
    with(
        LaunchError::new_err(error.to_string()),
        [
            ("kernel", Some(kernel.clone())),
            ("field", field),
            ("required", required),
            ("actual", actual),
        ],
    )
}

/// A bundle that cannot be used; `text` is its PTX, if it was read.
pub fn bundle(error: &RustBundleError, text: &str) -> PyErr {
    let fields = match error {
        RustBundleError::Load { source, .. } => return load(source, text),
        RustBundleError::Launch(error) => return launch(error),
        RustBundleError::Memory(error) => return memory(error),
        RustBundleError::Field { field, required, actual } => {
            [Some(field.clone()), Some(required.clone()), Some(actual.clone())]
        }
        _ => [None, None, None],
    };
    let [field, required, actual] = fields;
    with(
        BundleError::new_err(error.to_string()),
        [("field", field), ("required", required), ("actual", actual)],
    )
}

/// A kernel that did something wrong: the first denied finding of a result.
pub fn found(
    py: Python<'_>,
    finding: &Py<Finding>,
    findings: &[Py<Finding>],
    result: Py<RunResult>,
) -> PyErr {
    let denied = finding.get().diagnostic();
    let mut message = line(denied);
    let others = findings.len().saturating_sub(1);
    if others != 0 {
        message += &format!("\n{others} more in `findings`");
    }
    let raised = FindingError::new_err(message);
    let all: Vec<Py<Finding>> = findings.iter().map(|one| one.clone_ref(py)).collect();
    let value = raised.value(py);
    let set = value
        .setattr("finding", finding.clone_ref(py))
        .and_then(|()| value.setattr("findings", all))
        .and_then(|()| value.setattr("result", result));
    set.map_or_else(|failed| failed, |()| raised)
}

/// A finding, and what to do about it.
fn line(found: &Diagnostic) -> String {
    let kind = found.kind();
    format!(
        "{kind}: {found}\nwhat to do: {} (ptx_emu.explain(\"{kind}\") says more)",
        kind.advice()
    )
}
