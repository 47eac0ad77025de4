//! A kernel around `tcgen05` instructions: it fills shared and tensor memory of a CTA
//! or of a CTA pair, has one thread issue the instructions, and gives all of tensor
//! memory back.

use super::{copy_in, vector, words};
use crate::async_support::{Case, wait};
use ptx_emu_core::{LaunchError, Schedule};

/// Cells of the tensor memory of a CTA.
pub const CELLS: usize = 128 * 512;

/// Tensor memory of a CTA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tmem(pub Vec<u32>);

impl Tmem {
    /// Cells that differ from each other.
    pub fn distinct(seed: u32) -> Self {
        Self((0..CELLS as u32).map(|i| (i ^ seed).wrapping_mul(0x9e37_79b9) ^ seed << 7).collect())
    }

    pub fn get(&self, lane: usize, column: usize) -> u32 {
        self.0[column * 128 + lane]
    }

    pub fn put(&mut self, lane: usize, column: usize, value: u32) {
        self.0[column * 128 + lane] = value;
    }

    pub fn put_byte(&mut self, lane: usize, column: usize, byte: usize, value: u8) {
        let cell = &mut self.0[column * 128 + lane];
        *cell = *cell & !(0xff << (8 * byte)) | u32::from(value) << (8 * byte);
    }
}

/// The contents of memory, and the executed text.
#[derive(Debug, Clone)]
pub struct Program {
    /// `cta_group`: as many CTAs.
    pub group: usize,
    /// Shared memory of each CTA, from address 1024 on.
    pub images: Vec<Vec<u8>>,
    pub tmem: Vec<Tmem>,
    /// Executed by thread 0 of the first CTA; tensor memory starts at `%r50`.
    pub issue: String,
    /// Executed by all threads afterwards.
    pub then: String,
}

impl Program {
    pub fn new(group: usize, images: Vec<Vec<u8>>, tmem: Vec<Tmem>, issue: String) -> Self {
        Self { group, images, tmem, issue, then: String::new() }
    }

    fn sync(&self) -> &'static str {
        match self.group {
            1 => "bar.sync 0;",
            _ => "bar.sync 0; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
        }
    }

    fn commit(&self) -> &'static str {
        match self.group {
            1 => "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%b];",
            _ => {
                "mov.u16 %h1, 3;
                tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%b], %h1;"
            }
        }
    }

    /// The kernel.
    pub fn case(&self) -> Case {
        let Self { group, images, .. } = self;
        let size =
            images.iter().map(Vec::len).max().expect("an image").next_multiple_of(1024).max(1024);
        let (sync, commit) = (self.sync(), self.commit());
        let mut body = format!(
            "{{ .reg .b32 x<128>;
            setp.eq.u32 %leader, %tid, 0;
            @%leader mbarrier.init.shared::cta.b64 [%b], 1;
            fence.mbarrier_init.release.cluster; {sync}
            setp.ne.u32 %p2, %wid, 0; @%p2 bra ALLOCATED;
            add.u32 %r49, %b, 8;
            tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r49], 512;
            tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;
            ALLOCATED: {sync}
            ld.shared.u32 %r50, [%b+8];
            mad.wide.u32 %d0, %rank, {stride}, %in; mov.u32 %r0, %s;
            {copy}
            mad.wide.u32 %d3, %tid, 4, %d0;
            shl.b32 %r51, %wid, 21; add.u32 %r51, %r51, %r50;\n",
            stride = size + 4 * CELLS,
            copy = copy_in(size, 128),
        );
        for chunk in 0..16 {
            for i in 0..32 {
                let at = size + (chunk * 32 + i) * 512;
                body += &format!("ld.global.b32 x{i}, [%d3+{at}];\n");
            }
            let values = vector("x", 32);
            body += &format!(
                "add.u32 %r52, %r51, {};
                tcgen05.st.sync.aligned.32x32b.x32.b32 [%r52], {values};\n",
                chunk * 32
            );
        }
        body += &format!(
            "tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync;
            {sync} tcgen05.fence::after_thread_sync;
            setp.ne.u32 %p2, %rank, 0; @%p2 bra ISSUED; @!%leader bra ISSUED;
            {issue}
            {commit}
            ISSUED: {wait}
            tcgen05.fence::after_thread_sync;
            {then}
            mul.wide.u32 %d4, %rank, {all}; add.u64 %d4, %d4, %out; mad.wide.u32 %d4, %tid, 4, %d4;\n",
            issue = self.issue,
            wait = wait(0, "0", "COMMITTED"),
            then = self.then,
            all = 4 * CELLS,
        );
        for chunk in 0..16 {
            let values = vector("x", 32);
            body += &format!(
                "add.u32 %r52, %r51, {};
                tcgen05.ld.sync.aligned.32x32b.x32.b32 {values}, [%r52];
                tcgen05.wait::ld.sync.aligned;\n",
                chunk * 32
            );
            for i in 0..32 {
                body += &format!("st.global.b32 [%d4+{}], x{i};\n", (chunk * 32 + i) * 512);
            }
        }
        body += &format!(
            "{sync} setp.ne.u32 %p2, %wid, 0; @%p2 bra FREED;
            tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r50, 512;
            FREED: }}\n"
        );
        let mut case = Case::new(&body).block(128).out((group * CELLS * 4) as u64);
        case.sm100 = true;
        case.shared = size as u32;
        case.input = Vec::new();
        for (image, tmem) in images.iter().zip(&self.tmem) {
            case.input.extend(image);
            case.input.resize(case.input.len() + size - image.len(), 0xff);
            case.input.extend(tmem.0.iter().flat_map(|cell| cell.to_le_bytes()));
        }
        if *group == 2 { case.cluster(2) } else { case }
    }

    /// Tensor memory of each CTA afterwards.
    pub fn run(&self, schedule: Schedule) -> Result<Vec<Tmem>, LaunchError> {
        let (out, _) = self.case().launch(schedule)?;
        Ok(words(&out).chunks(CELLS).map(|cells| Tmem(cells.to_vec())).collect())
    }

    /// Every schedule must leave tensor memory like this.
    #[track_caller]
    pub fn gives(&self, expected: &[Tmem], schedules: &[Schedule], what: &str) {
        for &schedule in schedules {
            match self.run(schedule) {
                Err(error) => panic!("{what}, {schedule}: {error}\n{}", self.issue),
                Ok(actual) => {
                    for (rank, (actual, expected)) in actual.iter().zip(expected).enumerate() {
                        same(actual, expected, &format!("{what}, {schedule}, CTA {rank}"));
                    }
                }
            }
        }
    }
}

#[track_caller]
fn same(actual: &Tmem, expected: &Tmem, what: &str) {
    for (at, (actual, expected)) in actual.0.iter().zip(&expected.0).enumerate() {
        let (lane, column) = (at % 128, at / 128);
        assert_eq!(
            actual, expected,
            "{what}: lane {lane}, column {column}: {actual:#010x} instead of {expected:#010x}"
        );
    }
}
