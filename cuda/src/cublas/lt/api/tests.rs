//! Products are described to a library that writes down what it is asked.

use std::cell::RefCell;
use std::ffi::{CStr, c_char};

use super::*;
use crate::cublas::find;

/// A library that records the questions and gives fixed answers.
#[derive(Default)]
struct Fake {
    calls: Vec<String>,
    alive: usize,
    made: usize,
    /// The call that fails, counted from 1.
    fails_at: Option<usize>,
    /// Answers of the heuristic: its status, the result's, the number of results.
    heuristic: [i32; 3],
}

thread_local! {
    static FAKE: RefCell<Fake> = RefCell::default();
}

impl Fake {
    fn call(text: String) -> Status {
        FAKE.with_borrow_mut(|fake| {
            fake.calls.push(text);
            if fake.fails_at == Some(fake.calls.len()) { 7 } else { 0 }
        })
    }

    fn create(made: *mut Opaque, text: String) -> Status {
        let status = Self::call(text);
        if status == 0 {
            let number = FAKE.with_borrow_mut(|fake| {
                fake.alive += 1;
                fake.made += 1;
                fake.made
            });
            // SAFETY: callers pass the address of a local.
            unsafe { *made = ptr::without_provenance_mut(number) };
        }
        status
    }

    fn set(kind: &str, of: Opaque, attribute: i32, value: *const c_void, size: usize) -> Status {
        // SAFETY: callers pass the address of a local of this size.
        let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), size) };
        let mut wide = [0; 8];
        wide[..size].copy_from_slice(value);
        let (number, value) = (of.addr(), u64::from_le_bytes(wide));
        Self::call(format!("{kind} {number}: {attribute} = {value}, {size} bytes"))
    }
}

unsafe extern "C" fn make(made: *mut Opaque) -> Status {
    Fake::create(made, "preference".into())
}

unsafe extern "C" fn make_operation(made: *mut Opaque, compute: i32, scale: i32) -> Status {
    Fake::create(made, format!("operation {compute} {scale}"))
}

unsafe extern "C" fn make_layout(
    made: *mut Opaque,
    element: i32,
    rows: u64,
    columns: u64,
    leading: i64,
) -> Status {
    Fake::create(made, format!("layout {element} {rows} x {columns}, {leading}"))
}

unsafe extern "C" fn destroy(_: Opaque) -> Status {
    FAKE.with_borrow_mut(|fake| fake.alive -= 1);
    0
}

unsafe extern "C" fn set_operation(o: Opaque, a: i32, v: *const c_void, n: usize) -> Status {
    Fake::set("operation", o, a, v, n)
}

unsafe extern "C" fn set_layout(o: Opaque, a: i32, v: *const c_void, n: usize) -> Status {
    Fake::set("layout", o, a, v, n)
}

unsafe extern "C" fn set_preference(o: Opaque, a: i32, v: *const c_void, n: usize) -> Status {
    Fake::set("preference", o, a, v, n)
}

unsafe extern "C" fn heuristic(
    handle: Handle,
    operation: Opaque,
    a: Opaque,
    b: Opaque,
    c: Opaque,
    d: Opaque,
    preference: Opaque,
    asked: i32,
    found: *mut Heuristic,
    count: *mut i32,
) -> Status {
    let all = [handle, operation, a, b, c, d, preference].map(|object| object.addr());
    let failed = Fake::call(format!("heuristic {all:?}, {asked}"));
    let [status, state, results] = FAKE.with_borrow(|fake| fake.heuristic);
    // SAFETY: the caller passes the addresses of locals.
    unsafe {
        *found = Heuristic { algorithm: Algorithm([5; 8]), state, ..Heuristic::default() };
        *count = results;
    }
    if failed == 0 { status } else { failed }
}

unsafe extern "C" fn matmul(
    _: Handle,
    _: Opaque,
    _: *const f32,
    _: *const c_void,
    _: Opaque,
    _: *const c_void,
    _: Opaque,
    _: *const f32,
    _: *const c_void,
    _: Opaque,
    _: *mut c_void,
    _: Opaque,
    _: *const Algorithm,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
) -> Status {
    unreachable!("nothing is launched without a device")
}

unsafe extern "C" fn version() -> usize {
    130_002
}

unsafe extern "C" fn status_name(status: Status) -> *const c_char {
    let name: &CStr = if status == 15 { c"NOT_SUPPORTED" } else { c"INVALID_VALUE" };
    name.as_ptr()
}

const API: Api = Api {
    create: make,
    destroy,
    version,
    status_name: Some(status_name),
    create_operation: make_operation,
    set_operation,
    destroy_operation: destroy,
    create_layout: make_layout,
    set_layout,
    destroy_layout: destroy,
    create_preference: make,
    set_preference,
    destroy_preference: destroy,
    heuristic,
    matmul,
};

/// Plans the product of 2 x (96 x 32 and 5 x 32) on a fake library.
fn plan(fake: Fake, sums: E4m3Sums) -> (Result<Result<Algorithm, String>, CublasError>, Fake) {
    FAKE.set(fake);
    let described = API.describe([96, 5, 32, 2], [0x1000, 0x2000], sums);
    let handle = ptr::without_provenance_mut(99);
    let found = described.and_then(|product| API.choose(handle, &product, 64));
    (found, FAKE.take())
}

fn answers(heuristic: [i32; 3]) -> Fake {
    Fake { heuristic, ..Fake::default() }
}

#[test]
fn a_product_is_described_as_cublas_documents_it() {
    let (found, fake) = plan(answers([0, 0, 1]), E4m3Sums::Fast);
    assert_eq!(found.expect("no call fails").expect("found").0, [5; 8]);
    assert_eq!(fake.alive, 0);
    // Types: e4m3 is 28, f16 is 2, f32 is 0; computing in f32 is 68.
    let expected = [
        "operation 68 0",
        "operation 1: 3 = 1, 4 bytes",
        "operation 1: 4 = 0, 4 bytes",
        "operation 1: 17 = 4096, 8 bytes",
        "operation 1: 18 = 8192, 8 bytes",
        "operation 1: 25 = 1, 1 bytes",
        "layout 28 32 x 96, 32",
        "layout 2: 5 = 2, 4 bytes",
        "layout 2: 6 = 3072, 8 bytes",
        "layout 28 32 x 5, 32",
        "layout 3: 5 = 2, 4 bytes",
        "layout 3: 6 = 160, 8 bytes",
        "layout 2 96 x 5, 96",
        "layout 4: 5 = 2, 4 bytes",
        "layout 4: 6 = 480, 8 bytes",
        "preference",
        "preference 5: 1 = 33554432, 8 bytes",
        "preference 5: 5 = 64, 4 bytes",
        "preference 5: 6 = 64, 4 bytes",
        "preference 5: 7 = 64, 4 bytes",
        "preference 5: 8 = 64, 4 bytes",
        "heuristic [99, 1, 2, 3, 4, 4, 5], 1",
    ];
    assert_eq!(fake.calls, expected);
    let (_, fake) = plan(answers([0, 0, 1]), E4m3Sums::Promoted);
    assert_eq!(fake.calls[5], "operation 1: 25 = 0, 1 bytes");
}

/// Whichever call fails, its error is returned and nothing is left.
#[test]
fn every_failed_call_is_an_error() {
    let all = plan(answers([0, 0, 1]), E4m3Sums::Fast).1.calls.len();
    for fails_at in 1..=all {
        let answers = Fake { fails_at: Some(fails_at), ..answers([0, 0, 1]) };
        let (found, fake) = plan(answers, E4m3Sums::Fast);
        let error = found.expect_err("the call failed").to_string();
        assert!(error.ends_with("returned INVALID_VALUE (7)"), "{error}");
        assert_eq!((fake.calls.len(), fake.alive), (fails_at, 0), "{error}");
    }
}

#[test]
fn products_without_a_kernel_are_refused_with_the_reason() {
    let refused = |heuristic| {
        let (found, fake) = plan(answers(heuristic), E4m3Sums::Promoted);
        assert_eq!(fake.alive, 0);
        found.expect("no error").expect_err("no algorithm")
    };
    assert_eq!(refused([0, 0, 0]), "cublasLtMatmulAlgoGetHeuristic found none");
    let text = "cublasLtMatmulAlgoGetHeuristic returned NOT_SUPPORTED (15)";
    assert_eq!(refused([15, 0, 0]), text);
    assert_eq!(refused([0, 15, 1]), text);
}

/// Describing a product takes no GPU. The library itself takes the description, where there is one.
#[test]
fn the_library_takes_the_description() {
    let (library, path) = match find::open_lt() {
        Ok(found) => found,
        Err(error) => return skipped::test(error),
    };
    let api = Api::of(&Functions { library: &library, path: &path }).expect("all functions");
    // SAFETY: the function has no arguments.
    let version = unsafe { (api.version)() };
    assert!((120_000..140_000).contains(&version), "{version} of {path}");
    for sums in [E4m3Sums::Promoted, E4m3Sums::Fast] {
        api.describe([96, 5, 32, 2], [0x1000, 0x2000], sums).expect("documented attributes");
    }
    let preference = api.preference(64).expect("documented attributes");
    assert!(!preference.raw.is_null());
}
