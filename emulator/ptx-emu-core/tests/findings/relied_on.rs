//! Behaviour that real kernels rely on and a checker must not call wrong: one test a point,
//! numbered as the points of `requirements` go on. Each is right on hardware; a twin that is not
//! shows that the point is still looked at.

use crate::async_support::{Case, barriers, schedules, wait};
use crate::tensor_cores::copy_in;
use ptx_emu_core::{
    Checks, GlobalMemory, Gpu, Kind, Launch, LaunchError, Level, LoadError, Model, Module, Schedule,
};

const MODELS: [Model; 2] = [Model::Hardware, Model::Ptx];

pub(super) fn by(case: &Case, model: Model) -> Case {
    Case { model, ..case.clone() }
}

/// The first finding under some schedule.
pub(super) fn finding(case: &Case, model: Model) -> Option<Kind> {
    schedules().take(20).find_map(|schedule| match by(case, model).launch(schedule) {
        Ok(_) => None,
        Err(LaunchError::Diagnostic(found)) => Some(found.kind()),
        Err(error) => panic!("{error}"),
    })
}

/// A store of a register to the word of the thread.
pub(super) fn store(register: &str) -> String {
    format!("mad.wide.u32 %d58, %tid, 4, %out; st.global.u32 [%d58], {register};")
}

const FENCED: &str =
    "tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;";

/// A body of `block` threads with 64 columns of tensor memory at `%r50`, the lanes of each warp
/// at `%r51`; `sync` orders the allocation and the end.
fn with_columns(block: u32, sync: &str, body: &str) -> Case {
    let text = format!(
        "{} setp.ne.u32 %p10, %wid, 0; @%p10 bra ALLOCATED;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%b+56], 64;
        tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
        ALLOCATED: {sync}
        ld.shared.u32 %r50, [%b+56]; and.b32 %r51, %wid, 3; shl.b32 %r51, %r51, 21;
        add.u32 %r51, %r51, %r50;
        {body}
        {sync}
        @%p10 bra FREED; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r50, 64; FREED:",
        barriers(&[1, 1, 32]),
    );
    Case { sm100: true, ..Case::new(&text).block(block).out(4 * u64::from(block)) }
}

const STORE: &str =
    "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r51], {%tid}; tcgen05.wait::st.sync.aligned;";
const LOAD: &str = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r3}, [%r51];";
const LOADED: &str = "tcgen05.wait::ld.sync.aligned;";

#[test]
fn p17_registers_of_a_load_are_used_before_its_wait() {
    let body = format!("{STORE} {LOAD} add.u32 %r4, %r3, 7; {} {LOADED}", store("%r4"));
    let case = with_columns(128, FENCED, &body);
    by(&case, Model::Hardware).gives_words((0..128).map(|i| i + 7));
    assert_eq!(finding(&case, Model::Ptx), Some(Kind::TensorLoadRegisters));
    // Arguments of calls are used too; a load over a register that is still to come waits.
    let twice = format!(
        "{STORE} mov.b32 %r3, 5; {LOAD} {LOAD} mov.b64 %d4, {{%r3, %r3}};
        shr.u64 %d4, %d4, 32; cvt.u32.u64 %r4, %d4; {} {LOADED}",
        store("%r4")
    );
    by(&with_columns(128, FENCED, &twice), Model::Hardware).gives_words(0..128);
    // The wait has a purpose: nobody else may use the memory before it.
    // All its registers used are as good on hardware, one of two is not, nor is one written over.
    let early = with_columns(128, FENCED, &format!("{STORE} {LOAD} {}", store("%r3")));
    by(&early, Model::Hardware).gives_words(0..128);
    assert_eq!(finding(&early, Model::Ptx), Some(Kind::TensorLoadRegisters));
    let both = LOAD.replace("x1", "x2").replace("%r3", "%r3, %r5");
    let stored = format!("{STORE} {}", STORE.replace("[%r51]", "[%r51+1]"));
    let sum = format!("add.u32 %r4, %r3, %r5; {}", store("%r4"));
    let used = with_columns(128, FENCED, &format!("{stored} {both} {sum}"));
    by(&used, Model::Hardware).gives_words((0..128).map(|i| 2 * i));
    for unused in [store("%r3"), format!("{} mov.u32 %r5, 1; add.u32 %r4, %r5, 1;", store("%r3"))] {
        let case = with_columns(128, FENCED, &format!("{stored} {both} {unused}"));
        let found = finding(&case, Model::Hardware);
        assert_eq!(found, Some(Kind::TensorMemoryRace), "{unused}");
        assert!(finding(&case, Model::Ptx).is_some());
    }
}

#[test]
fn p18_barriers_order_tensor_memory_without_its_fences() {
    // Written by warps 0 to 3, read by warps 4 to 7 behind a barrier or an mbarrier.
    let other = |sync: &str| {
        format!(
            "setp.ge.u32 %p11, %wid, 4; @%p11 bra READ; {STORE} READ: {sync}
            @!%p11 bra DONE; {LOAD} {LOADED} {} DONE:",
            store("%r3")
        )
    };
    let barrier = with_columns(256, "bar.sync 0;", &other("bar.sync 0;"));
    let written = Case { out_bytes: 1024, ..barrier.clone() };
    for schedule in schedules() {
        let (bytes, _) = by(&written, Model::Hardware).launch(schedule).unwrap();
        let words = bytes[512..].chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap()));
        assert!(words.eq(0..128), "{schedule}");
    }
    assert_eq!(finding(&barrier, Model::Ptx), Some(Kind::MissingTcgen05Fence));
    let phase = |arrive: &str, waiting: &str| {
        let sync = format!(
            "@!%p11 mbarrier.arrive{arrive}.shared::cta.b64 _, [%b+16]; @!%p11 bra WAITED;
            W: mbarrier.try_wait.parity{waiting}.shared::cta.b64 %p1, [%b+16], 0; @!%p1 bra W; WAITED:"
        );
        let body = other(&sync).replace("%p11, %wid, 4", "%p11, %wid, 4; and.b32 %r9, %wid, 3");
        let case = with_columns(256, "bar.sync 0;", &body);
        Case { body: case.body.replace("[%b+16], 32;", "[%b+16], 128;"), ..case }
    };
    by(&phase("", ""), Model::Hardware).passes();
    // Relaxed ones do not.
    let late = finding(&phase("", ".relaxed.cta"), Model::Hardware);
    assert_eq!(late, Some(Kind::MissingTcgen05Fence));
    let early = finding(&phase(".relaxed.cta", ""), Model::Hardware);
    assert_eq!(early, Some(Kind::TensorMemoryRace));
}

/// `A` of 64x16 f16 at `s`, `B` of 8x16 behind it, both without swizzle.
const A: u64 = 1024 >> 4 | (1024 >> 4) << 16 | (128 >> 4) << 32;
const B: u64 = (1024 + 2048) >> 4 | (128 >> 4) << 16 | (128 >> 4) << 32;
const BYTES: usize = 2048 + 256;

/// A warpgroup multiplies a stage of ones twice; warp 4 writes twos over it in between, once the
/// stage is released: by `release`, behind `complete`.
fn staged(complete: &str, release: &str) -> Case {
    let product = "wgmma.fence.sync.aligned;
        wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {x0, x1, x2, x3}, da, db, yes, 1, 1, 0, 0;
        wgmma.commit_group.sync.aligned;";
    let text = format!(
        "{{ .reg .b32 x<4>; .reg .b64 da, db; .reg .pred yes;
        setp.eq.u32 yes, 0, 0; mov.b64 da, {A:#x}; mov.b64 db, {B:#x};
        mov.b32 x0, 0; mov.b32 x1, 0; mov.b32 x2, 0; mov.b32 x3, 0;
        mov.u64 %d0, %in; mov.u32 %r0, %s;
        setp.ge.u32 %p2, %tid, 128; {} fence.proxy.async; {}
        @%p2 bra PRODUCER;
        {product} {complete} {release} wgmma.wait_group.sync.aligned 0;
        {} {product} wgmma.wait_group.sync.aligned 0;
        mad.wide.u32 %d2, %tid, 16, %out; st.global.v4.b32 [%d2], {{x0, x1, x2, x3}}; bra END;
        PRODUCER: {} mov.u32 %r5, %lane;
        OVER: mad.lo.u32 %r6, %r5, 4, %s; st.shared.u32 [%r6], 0x40004000;
        add.u32 %r5, %r5, 32; setp.lt.u32 %p3, %r5, {}; @%p3 bra OVER;
        fence.proxy.async; mbarrier.arrive.shared::cta.b64 _, [%b+8]; END: }}",
        copy_in(BYTES, 160),
        barriers(&[1, 32]),
        wait(1, "0", "FULL"),
        wait(0, "0", "EMPTY"),
        BYTES / 4,
    );
    let mut case = Case::new(&text).block(160).out(2048);
    case.input = [0x00, 0x3c].repeat(BYTES / 2);
    case.shared = 4096;
    case
}

#[test]
fn p19_one_thread_releases_a_stage_for_its_warpgroup() {
    let arrive = "@%leader mbarrier.arrive.shared::cta.b64 _, [%b];";
    let complete = "wgmma.wait_group.sync.aligned 0;";
    for model in MODELS {
        // 16 products of ones, and 16 of twos.
        by(&staged(complete, arrive), model).gives_words([80f32.to_bits(); 512]);
        let early = staged("", arrive);
        assert!(schedules().skip(1).any(|schedule| by(&early, model).launch(schedule).is_err()));
    }
}

#[test]
fn p20_an_arrival_of_all_lanes_orders_them() {
    // Lanes of warp 0 write a word each; lane 0 tells warp 1.
    let body = |meet: &str| {
        format!(
            "{} mad.lo.u32 %r1, %lane, 4, %s; setp.eq.u32 %p1, %wid, 1; @%p1 bra OTHER;
            st.shared.u32 [%r1], %tid; {meet}
            @%leader mbarrier.arrive.shared::cta.b64 _, [%b+8]; bra END;
            OTHER: {} ld.shared.u32 %r2, [%r1]; mad.wide.u32 %d1, %lane, 4, %out;
            st.global.u32 [%d1], %r2; END:",
            barriers(&[32, 1]),
            wait(1, "0", "TOLD"),
        )
    };
    let all = format!(
        "mbarrier.arrive.shared::cta.b64 _, [%b]; @!%leader bra ARRIVED; {} ARRIVED:",
        wait(0, "0", "ALL")
    );
    let one =
        all.replace("mbarrier.arrive", "@%leader mbarrier.arrive").replace("[%b];", "[%b], 32;");
    for model in MODELS {
        let case = |meet: &str| by(&Case::new(&body(meet)).block(64), model);
        case(&all).gives_words(0..32);
        case("bar.warp.sync -1;").gives_words(0..32);
    }
    // On hardware the warp goes together, but not behind a branch.
    let lanes = Case::new(&body(&one)).block(64);
    by(&lanes, Model::Hardware).gives_words(0..32);
    let parted = format!("setp.ge.u32 %p2, %lane, 7; @%p2 bra PARTED; PARTED: {one}");
    for case in [by(&lanes, Model::Ptx), by(&Case::new(&body(&parted)).block(64), Model::Ptx)] {
        assert!(schedules().skip(1).take(8).all(|schedule| case.launch(schedule).is_err()));
    }
    let stored_apart = body("").replace(
        "st.shared.u32 [%r1], %tid;",
        "setp.ge.u32 %p2, %lane, 7; @%p2 bra UPPER; st.shared.u32 [%r1], %tid; bra BOTH;
        UPPER: st.shared.u32 [%r1], %tid; BOTH:",
    );
    let stored_apart = Case::new(&stored_apart).block(64);
    for model in MODELS {
        assert_eq!(finding(&stored_apart, model), Some(Kind::DataRace), "{model}");
    }
}

#[test]
fn p21_shuffles_from_lanes_that_do_not_take_part() {
    // A sum over 20 lanes; lanes beyond leave, and what would come from them is not used.
    let sum = |used: &str| {
        format!(
            "setp.ge.u32 %p1, %lane, 20; @%p1 exit; mov.u32 %r1, %lane; mov.u32 %r5, 16;
            STEP: shfl.sync.down.b32 %r2, %r1, %r5, 31, 0x000fffff; add.u32 %r3, %lane, %r5;
            setp.lt.u32 %p2, %r3, 20; {used}
            shr.u32 %r5, %r5, 1; setp.ne.u32 %p3, %r5, 0; @%p3 bra STEP;
            setp.ne.u32 %p4, %lane, 0; @%p4 exit; st.global.u32 [%out], %r1;"
        )
    };
    let sums = (0..20).sum::<u32>();
    for used in [
        "@%p2 add.u32 %r1, %r1, %r2;",
        "add.u32 %r4, %r1, %r2; selp.b32 %r1, %r4, %r1, %p2;",
        "mov.b64 %d1, {%r2, %r1}; cvt.u32.u64 %r4, %d1; add.u32 %r4, %r4, %r1; selp.u32 %r1, %r4, %r1, %p2;",
    ] {
        for model in MODELS {
            by(&Case { out_bytes: 4, ..Case::new(&sum(used)) }, model).gives_words([sums]);
        }
    }
    // Through sums, wide registers and predicates: where something depends on it.
    for (through, last) in [
        ("add.u32 %r3, %r2, 1;", "st.global.u32 [%out], %r3;"),
        ("mov.b64 %d1, {%r2, %lane};", "st.global.u64 [%out], %d1;"),
        ("setp.eq.u32 %p2, %r2, 3;", "@%p2 bra END; st.global.u32 [%out], 1; END:"),
        (
            "cvt.u64.u32 %d1, %r2; and.b64 %d1, %d1, 4; add.u64 %d1, %d1, %out;",
            "st.global.u32 [%d1], 1;",
        ),
        ("shfl.sync.idx.b32 %r3, %r2, 19, 31, 0x000fffff;", "st.global.u32 [%out], %r3;"),
    ] {
        let body = format!(
            "setp.ge.u32 %p1, %lane, 20; @%p1 exit;
            shfl.sync.down.b32 %r2, %lane, 1, 31, 0x000fffff; {through} {last}"
        );
        for model in MODELS {
            assert_eq!(finding(&Case::new(&body), model), Some(Kind::UndefinedValue), "{through}");
        }
    }
    // Written again, it is defined.
    let again = "setp.ge.u32 %p1, %lane, 20; @%p1 exit;
        shfl.sync.down.b32 %r2, %lane, 1, 31, 0x000fffff; mov.u32 %r2, 9; st.global.u32 [%out], %r2;";
    Case { out_bytes: 4, ..Case::new(again) }.gives_words([9]);
}

#[test]
fn p22_commits_of_one_thread_complete_in_order() {
    // Two commits to two mbarriers, of which only the later is waited for before the end.
    let commit = |at: u32| {
        format!(
            "@%leader tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%b+{at}];"
        )
    };
    let case =
        with_columns(32, FENCED, &format!("{} {} {}", commit(0), commit(8), wait(1, "0", "LAST")));
    by(&case, Model::Hardware).passes();
    assert_eq!(finding(&case, Model::Ptx), Some(Kind::ExitInFlight));
    // The arrival of the earlier one is over as well, so that its mbarrier may be given up.
    let given_up = |at: u32| {
        let body = format!(
            "{} {} {} @%leader mbarrier.inval.shared::cta.b64 [%b+{at}];",
            commit(0),
            commit(8),
            wait(1, "0", "LAST")
        );
        with_columns(32, FENCED, &body)
    };
    by(&given_up(0), Model::Hardware).passes();
    assert!(finding(&given_up(0), Model::Ptx).is_some());
    let first =
        with_columns(32, FENCED, &format!("{} {} {}", commit(0), commit(8), wait(0, "0", "FIRST")));
    for model in MODELS {
        assert_eq!(finding(&first, model), Some(Kind::ExitInFlight), "{model}");
    }
}

#[test]
fn p23_stores_may_end_after_their_cta() {
    let body = |end: &str| {
        format!(
            "setp.eq.u32 %leader, %tid, 0; mad.lo.u32 %r1, %tid, 4, %s; st.shared.u32 [%r1], %tid;
            fence.proxy.async.shared::cta; bar.sync 0;
            @%leader cp.async.bulk.global.shared::cta.bulk_group [%out], [%s], 128;
            @%leader cp.async.bulk.commit_group; {end}"
        )
    };
    let case = Case::new(&body(""));
    by(&case, Model::Hardware).gives_words(0..32);
    assert_eq!(finding(&case, Model::Ptx), Some(Kind::ExitSourceInFlight));
    Case::new(&body("@%leader cp.async.bulk.wait_group.read 0;")).gives_words(0..32);
    let over = Case::new(&body("bar.sync 0; st.shared.u32 [%r1], 0;"));
    assert_eq!(finding(&over, Model::Hardware), Some(Kind::MemoryInFlight));
}

/// A launch of one warp, in its own module, with 4 KiB of output.
fn launch(
    module: &Module,
    entry: &str,
    params: &[u8],
    memory: &mut GlobalMemory,
) -> Result<(), LaunchError> {
    let launch = Launch {
        entry,
        grid: [1, 1, 1],
        block: [32, 1, 1],
        cluster: None,
        dynamic_shared: 0,
        params,
        schedule: Schedule::Lazy,
        threads: Some(1),
        instruction_limit: Some(1_000_000),
        checks: Checks::new(Model::Hardware),
    };
    module.launch(memory, &launch).map(|_| ())
}

#[test]
fn p24_a_tensor_map_in_the_encoding_of_the_hardware() {
    // The first map that a driver made, with the address of the copy in its first word.
    let golden = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../tests/data/ptx_golden/tensor_maps_h200.json"
    ));
    let golden: serde_json::Value = serde_json::from_str(golden).unwrap();
    let case = &golden["cases"][0];
    assert_eq!((&case["dtype"], &case["box"]), (&"UINT8".into(), &serde_json::json!([16, 64])));
    let digits = case["map"].as_str().unwrap().as_bytes();
    let mut map: Vec<u8> = digits
        .chunks(2)
        .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
        .collect();
    map.resize(128, 0);
    let text = format!(
        ".version 9.0\n.target sm_90a\n.address_size 64
        .visible .entry k(.param .u64 out, .param .align 64 .b8 map[128]) {{
        .shared .align 1024 .b8 s[1024]; .shared .align 8 .b64 b[1];
        .reg .pred %p<20>, %leader; .reg .b32 %r<9>, %tid, %s, %b; .reg .b64 %d<9>, %out, %m;
        ld.param.u64 %out, [out]; mov.u64 %m, map; cvta.param.u64 %m, %m;
        mov.u32 %s, s; mov.u32 %b, b; mov.u32 %tid, %tid.x; {}
        @%leader mbarrier.arrive.expect_tx.shared::cta.b64 _, [%b], 1024;
        @%leader cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%m, {{32, 2}}], [%b];
        {} mad.lo.u32 %r1, %tid, 4, %s; ld.shared.u32 %r2, [%r1];
        mad.wide.u32 %d1, %tid, 4, %out; st.global.u32 [%d1], %r2; ret; }}",
        barriers(&[1]),
        wait(0, "0", "W0"),
    );
    let module = Module::load(&text, &Gpu::h200()).unwrap();
    let mut memory = GlobalMemory::new();
    let bytes: Vec<u8> = (0..1024 * 512).map(|i: u32| (i % 251) as u8).collect();
    let (input, out) =
        (memory.alloc_from("in", &bytes).unwrap(), memory.alloc("out", 128, 256).unwrap());
    map[..8].copy_from_slice(&input.to_le_bytes());
    let mut params = out.to_le_bytes().to_vec();
    params.resize(64, 0);
    params.extend(map);
    launch(&module, "k", &params, &mut memory).unwrap();
    let expected: Vec<u8> =
        (2..10).flat_map(|row| bytes[row * 1024 + 32..][..16].to_vec()).collect();
    assert_eq!(memory.read(out, 128).unwrap(), expected);
}

#[test]
fn p25_other_kernels_of_the_module_need_not_be_modelled() {
    let text = ".version 9.0\n.target sm_90a\n.address_size 64
        .func helper(.param .b32 x) { .reg .b32 %r; suq.width.b32 %r, [0]; ret; }
        .func (.reg .b32 y) twice(.reg .b32 x) { add.u32 y, x, x; ret; }
        .visible .entry good(.param .u64 out) { .reg .b64 %o; .reg .b32 %r;
            ld.param.u64 %o, [out]; call (%r), twice, (21); st.global.u32 [%o], %r; ret; }
        .visible .entry bad(.param .u64 out) { .param .b32 p; call helper, (p);
            multimem.red.relaxed.sys.global.add.u32 [0], 1; ret; }";
    let gpu = Gpu::h200();
    let LoadError::Unsupported(all) = Module::load(text, &gpu).unwrap_err() else { panic!() };
    assert_eq!(all.len(), 2);
    let module = Module::load_entry(text, &gpu, "good").unwrap();
    assert_eq!(module.entries().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["good"]);
    let mut memory = GlobalMemory::new();
    let out = memory.alloc("out", 4, 256).unwrap();
    launch(&module, "good", &out.to_le_bytes(), &mut memory).unwrap();
    assert_eq!(memory.read(out, 4).unwrap(), 42u32.to_le_bytes());
    let LoadError::Unsupported(all) = Module::load_entry(text, &gpu, "bad").unwrap_err() else {
        panic!()
    };
    assert_eq!(all.len(), 2, "what it calls counts");
    let error = Module::load_entry(text, &gpu, "none").unwrap_err().to_string();
    assert_eq!(error, "entry: required one of: good, bad, actual none");
}

#[test]
fn the_missing_release_is_named() {
    // Warps 4 to 7 wait for what they loaded, but do not meet warp 0 before it frees the columns.
    let body = format!(
        "{STORE} {FENCED} setp.lt.u32 %p11, %wid, 4; @%p11 bra MEET; {LOAD} {LOADED} MEET:"
    );
    let case = with_columns(256, FENCED, &body);
    let last = case.body.rfind(FENCED).unwrap();
    let body = format!("{}{}", &case.body[..last], &case.body[last + FENCED.len()..]);
    let case = Case { body, ..case };
    let texts: Vec<String> = schedules()
        .skip(1)
        .filter_map(|schedule| by(&case, Model::Hardware).launch(schedule).err())
        .map(|error| error.to_string())
        .collect();
    let named = "has waited for the asynchronous operation, but nothing that it released since then was waited for here";
    assert!(texts.iter().any(|text| text.contains(named)), "{texts:#?}");
}

#[test]
fn warps_have_fair_turns_under_eager() {
    // Warp 0 goes through a hundred phases; warp 1 waits for the end of the first.
    let body = format!(
        "{} setp.eq.u32 %p1, %wid, 1; @%p1 bra WAITER; mov.u32 %r1, 0;
        PHASE: and.b32 %r2, %r1, 1; mbarrier.arrive.shared::cta.b64 _, [%b];
        NEXT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%b], %r2; @!%p2 bra NEXT;
        add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 100; @%p3 bra PHASE; bra END;
        WAITER: {} END: {}",
        barriers(&[32]),
        wait(0, "0", "FIRST"),
        store("%tid"),
    );
    let (bytes, _) = Case::new(&body).block(64).out(256).launch(Schedule::Eager).unwrap();
    assert_eq!(bytes[252..], 63u32.to_le_bytes());
}

#[test]
fn findings_are_collected_and_levels_count() {
    // Two races, and a value that is right all the same.
    let body = format!(
        "mad.lo.u32 %r1, %lane, 4, %s; setp.eq.u32 %p1, %wid, 0;
        @%p1 st.shared.u32 [%r1], 1; @%p1 st.shared.u32 [%r1+128], 1; bar.sync 0;
        @%p1 st.shared.u32 [%r1], 1; @!%p1 ld.shared.u32 %r2, [%r1];
        @%p1 st.shared.u32 [%r1+128], 1; @!%p1 ld.shared.u32 %r3, [%r1+128]; {}",
        store("%tid")
    );
    let case = Case::new(&body).block(64).out(256);
    let text = case.text();
    let run = |checks: Checks, threads: usize| {
        let module = Module::load(&text, &Gpu::h200()).unwrap();
        let mut memory = GlobalMemory::new();
        let input = memory.alloc_from("in", &case.input).unwrap();
        let out = memory.alloc("out", 256, 1024).unwrap();
        let mut params: Vec<u8> = [out, input].iter().flat_map(|p| p.to_le_bytes()).collect();
        params.resize(192, 0);
        let launch = Launch {
            entry: "k",
            grid: [64, 1, 1],
            block: [64, 1, 1],
            cluster: None,
            dynamic_shared: 0,
            params: &params,
            schedule: Schedule::Lazy,
            threads: Some(threads),
            instruction_limit: None,
            checks,
        };
        let result = module.launch(&mut memory, &launch);
        result.map(|report| (report, memory.read(out, 256)))
    };
    let checks = Checks::new(Model::Hardware);
    let LaunchError::Diagnostic(first) = run(checks, 1).unwrap_err() else { panic!() };
    let (report, output) = run(checks.collecting(20), 1).unwrap();
    assert_eq!(output.unwrap(), (0..64u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
    assert_eq!(report.findings.len(), 2, "{:#?}", report.findings);
    assert_eq!(report.findings[0], *first);
    assert!(report.findings.iter().all(|f| f.kind() == Kind::DataRace && f.level == Level::Deny));
    assert_eq!(run(checks.collecting(20), 4).unwrap().0.findings, report.findings);
    let (few, _) = run(checks.collecting(1), 1).unwrap();
    assert_eq!((few.findings.len(), few.findings_left_out), (1, 1));
    let (warned, _) = run(checks.with(Kind::DataRace, Level::Warn), 1).unwrap();
    assert!(warned.findings.iter().all(|f| f.level == Level::Warn) && warned.findings.len() == 2);
    let (allowed, _) = run(checks.with(Kind::DataRace, Level::Allow), 1).unwrap();
    assert_eq!(allowed.findings, []);
}
