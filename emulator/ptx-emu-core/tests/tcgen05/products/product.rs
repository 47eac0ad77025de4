//! One `tcgen05.mma` with its operands, and what it must give.

use crate::tensor_cores::tmem::{Program, Tmem};
use crate::tensor_cores::{Layout, Matrix, Random, Sum, Ty, dot};
use ptx_emu_core::Schedule;

/// Block scales of an instruction.
#[derive(Debug, Clone, Copy)]
pub struct Scales {
    /// Along K.
    pub count: usize,
    pub ue4m3: bool,
    /// Byte of the first scale of `A` and `B`.
    pub ids: (usize, usize),
    /// Columns behind the base of `B`'s scales.
    pub offset: usize,
}

/// One instruction.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    /// The text behind `.kind::`.
    pub kind: &'static str,
    pub group: usize,
    pub m: usize,
    pub n: usize,
    pub a: Ty,
    pub b: Ty,
    pub d: Sum,
    pub scales: Option<Scales>,
    pub a_tensor: bool,
    pub widths: (u32, u32),
    pub mn_major: (bool, bool),
    pub negate: (bool, bool),
    pub accumulate: bool,
    pub saturate: bool,
    /// `scale-input-d`
    pub shift: Option<u32>,
    /// Lanes that are not written, of each CTA.
    pub disabled: Option<[u128; 2]>,
    /// Lane of `D`: 0, or 16 for 64 rows.
    pub lane: usize,
    /// Steps of K.
    pub steps: usize,
}

/// Places of operands in tensor memory; `D` is at 0.
pub const A_COLUMN: usize = 256;
pub const SFA_COLUMN: usize = 320;
pub const SFB_COLUMN: usize = 384;

/// Value of a scale.
fn scale_value(ue4m3: bool, code: u8) -> f64 {
    if ue4m3 {
        Ty::E4m3.value(u32::from(code))
    } else if code == 0xff {
        f64::NAN
    } else {
        2f64.powi(i32::from(code) - 127)
    }
}

impl Product {
    pub fn new(kind: &'static str, group: usize, m: usize, n: usize, ty: Ty, d: Sum) -> Self {
        Self {
            kind,
            group,
            m,
            n,
            a: ty,
            b: ty,
            d,
            scales: None,
            a_tensor: false,
            widths: (128, 128),
            mn_major: (false, false),
            negate: (false, false),
            accumulate: true,
            saturate: false,
            shift: None,
            disabled: None,
            lane: 0,
            steps: 1,
        }
    }

    pub fn scaled(
        kind: &'static str,
        group: usize,
        m: usize,
        n: usize,
        ty: Ty,
        ue4m3: bool,
    ) -> Self {
        let count = match kind.rsplit('.').next() {
            Some("scale_vec::4X" | "block16") => 4,
            Some("scale_vec::1X") => 1,
            Some("block_scale" | "block32") if kind.starts_with("mxf8f6f4") => 1,
            _ => 2,
        };
        let scales = Some(Scales { count, ue4m3, ids: (0, 0), offset: 0 });
        Self { scales, ..Self::new(kind, group, m, n, ty, Sum::F32) }
    }

    fn packed(&self) -> bool {
        self.kind.starts_with("mxf4")
    }

    fn k(&self) -> usize {
        match self.a {
            Ty::Tf32 => 8,
            Ty::F16 | Ty::Bf16 => 16,
            _ if self.packed() => 64,
            _ => 32,
        }
    }

    fn rows(&self) -> usize {
        self.m / self.group
    }

    /// The instruction descriptor (the fact sheet's table).
    fn instruction(&self, step: usize) -> u32 {
        let code = |ty| match ty {
            Ty::F16 | Ty::E4m3 | Ty::U8 => 0,
            Ty::Bf16 | Ty::E5m2 | Ty::S8 => 1,
            Ty::Tf32 => 2,
            Ty::E2m3 => 3,
            Ty::E3m2 => 4,
            Ty::E2m1 if self.packed() => 1,
            Ty::E2m1 => 5,
        };
        let flag = |set, at: u32| u32::from(set) << at;
        let mut bits = code(self.a) << 7 | code(self.b) << 10 | (self.n as u32 >> 3) << 17;
        bits |= flag(self.negate.0, 13) | flag(self.negate.1, 14);
        bits |= flag(self.mn_major.0, 15) | flag(self.mn_major.1, 16);
        match self.scales {
            None => {
                let d = match self.d {
                    Sum::F16 => 0,
                    Sum::F32 => 1,
                    Sum::S32 => 2,
                };
                bits | flag(self.saturate, 3) | d << 4 | (self.m as u32 >> 4) << 24
            }
            Some(Scales { count, ue4m3, ids, .. }) => {
                let id = |first: usize| ((first + step * count) % 4) as u32;
                bits | id(ids.1) << 4
                    | flag(!ue4m3, 23)
                    | (self.m as u32 >> 7) << 27
                    | id(ids.0) << 29
            }
        }
    }

    /// Lane of `D`, or of an `A` in tensor memory, for a row of the CTA, and column.
    fn cell(&self, row: usize, column: usize) -> (usize, usize) {
        match (self.group, self.m) {
            (1, 64) => (row / 16 * 32 + row % 16 + self.lane, column),
            (2, 128) => (row + 64 * (column / (self.n / 2)), column % (self.n / 2)),
            _ => (row, column),
        }
    }

    /// Puts `A` of a step into tensor memory.
    fn place_a(&self, a: &Matrix, step: usize, tmem: &mut Tmem) {
        let container = if self.packed() { 4 } else { self.a.bits().max(8) as usize };
        let per = 32 / container;
        for row in 0..self.rows() {
            for cell in 0..self.k() / per {
                let word = (0..per).fold(0, |word, i| {
                    word | a.code(row, step * self.k() + cell * per + i) << (i * container)
                });
                let (lane, _) = self.cell(row, 0);
                let column = A_COLUMN + 8 * step + cell;
                tmem.put(lane, column, word);
                if (self.group, self.m) == (2, 128) {
                    tmem.put(lane + 64, column, word);
                }
            }
        }
    }

    /// Puts scales into tensor memory: `values[row][scale]`, in `first..` copies.
    fn place_scales(
        values: &[Vec<u8>],
        base: usize,
        id: usize,
        groups: usize,
        lanes: &[usize],
        tmem: &mut Tmem,
    ) {
        for (row, values) in values.iter().enumerate() {
            for (at, &value) in values.iter().enumerate() {
                let scale = at + id;
                for lane in lanes {
                    let column = base + scale / 4 * groups + row / 32;
                    tmem.put_byte(row % 32 + lane, column, scale % 4, value);
                }
            }
        }
    }

    /// The PTX of a step.
    fn issue(&self, step: usize, layouts: &(Layout, Layout)) -> String {
        let (la, lb) = layouts;
        let (da, db) = (la.descriptor(1024, true), lb.descriptor(1024, true));
        let mut text = format!(
            "mov.b64 %d10, {da:#x}; mov.b64 %d11, {db:#x}; mov.b32 %r10, {:#x};
            add.u32 %r11, %r50, {}; add.u32 %r12, %r50, {};
            setp.{}.u32 %p5, 0, 0;\n",
            self.instruction(step),
            self.lane << 16,
            A_COLUMN + 8 * step,
            if self.accumulate || step != 0 { "eq" } else { "ne" },
        );
        let a = if self.a_tensor { "[%r12]" } else { "%d10" };
        let mut operands = format!("[%r11], {a}, %d11, %r10");
        if let Some(Scales { count, ids, offset, .. }) = self.scales {
            let column = |base: usize, id: usize, groups: usize| {
                // The id in the upper bits is what CUTLASS leaves there.
                let scale = id + step * count;
                (base + scale / 4 * groups) | (scale % 4) << 30
            };
            text += &format!(
                "add.u32 %r13, %r50, {}; add.u32 %r14, %r50, {};\n",
                column(SFA_COLUMN, ids.0, self.groups_a()),
                column(SFB_COLUMN + offset, ids.1, self.groups_b()),
            );
            operands += ", [%r13], [%r14]";
        }
        if let Some(disabled) = self.disabled {
            let words: Vec<String> = (0..4 * self.group)
                .map(|at| {
                    let word = (disabled[at / 4] >> (32 * (at % 4))) as u32;
                    text += &format!("mov.b32 %r{}, {word:#x};\n", 20 + at);
                    format!("%r{}", 20 + at)
                })
                .collect();
            operands += &format!(", {{{}}}", words.join(", "));
        }
        operands += ", %p5";
        if let Some(shift) = self.shift {
            operands += &format!(", {shift}");
        }
        format!("{text}tcgen05.mma.cta_group::{}.kind::{} {operands};\n", self.group, self.kind)
    }

    fn groups_a(&self) -> usize {
        self.rows() / 32
    }

    /// Columns of a step's scales of `B`.
    fn groups_b(&self) -> usize {
        if (self.group, self.m) == (2, 128) {
            (self.n / 2).div_ceil(32)
        } else {
            self.n.next_multiple_of(128) / 32
        }
    }

    #[track_caller]
    pub fn check(&self, seed: u64) {
        self.check_with(seed, &[Schedule::Eager], |_| {});
    }

    /// Runs it and compares all of tensor memory. `edit` may change operands.
    #[track_caller]
    pub fn check_with(&self, seed: u64, schedules: &[Schedule], edit: impl FnOnce(&mut Operands)) {
        let mut random = Random::new(seed ^ (self.n * 31 + self.m) as u64);
        let k = self.k() * self.steps;
        let mut operands = Operands {
            a: (0..self.group).map(|_| Matrix::new(self.a, self.rows(), k, &mut random)).collect(),
            b: Matrix::new(self.b, self.n, k, &mut random),
            sfa: Vec::new(),
            sfb: Vec::new(),
        };
        if let Some(Scales { count, ue4m3, .. }) = self.scales {
            let mut scales = |rows| -> Vec<Vec<u8>> {
                let mut code = |_| random.below(if ue4m3 { 0x7f } else { 0xff }) as u8;
                (0..rows).map(|_| (0..count * self.steps).map(&mut code).collect()).collect()
            };
            operands.sfa = (0..self.group).map(|_| scales(self.rows())).collect();
            operands.sfb = scales(self.n);
        }
        edit(&mut operands);
        let mut images = vec![Vec::new(); self.group];
        let mut tmem: Vec<Tmem> =
            (0..self.group).map(|rank| Tmem::distinct(seed as u32 + rank as u32)).collect();
        let mut issue = String::new();
        for step in 0..self.steps {
            let layouts = self.layouts(step);
            for rank in 0..self.group {
                self.place(&operands, (rank, step), &layouts, &mut images[rank], &mut tmem[rank]);
            }
            issue += &self.issue(step, &layouts);
        }
        for (rank, tmem) in tmem.iter_mut().enumerate() {
            for row in 0..self.rows() {
                for column in 0..self.n {
                    let (lane, column) = self.cell(row, column);
                    tmem.put(lane, column, self.d.code(&mut random));
                }
            }
            if let Some(Scales { ids, offset, .. }) = self.scales {
                let all = [0, 32, 64, 96];
                let groups = (self.groups_a(), self.groups_b());
                Self::place_scales(&operands.sfa[rank], SFA_COLUMN, ids.0, groups.0, &all, tmem);
                let base = SFB_COLUMN + offset;
                let sfb = &operands.sfb;
                if (self.group, self.m) == (2, 128) {
                    let (low, high) = sfb.split_at(self.n / 2);
                    Self::place_scales(low, base, ids.1, groups.1, &[0, 32], tmem);
                    Self::place_scales(high, base, ids.1, groups.1, &[64, 96], tmem);
                } else {
                    Self::place_scales(sfb, base, ids.1, groups.1, &all, tmem);
                }
            }
        }
        let expected = self.expected(&operands, &tmem);
        let program = Program::new(self.group, images, tmem, issue);
        program.gives(&expected, schedules, &format!("{self:?}"));
    }

    fn layouts(&self, step: usize) -> (Layout, Layout) {
        let mut la = Layout::new(self.a, self.mn_major.0, self.widths.0, self.rows(), 0);
        let mut lb =
            Layout::new(self.b, self.mn_major.1, self.widths.1, self.n / self.group, 65536);
        (la.inside, lb.inside) = (32 * step as u32, 32 * step as u32);
        if self.packed() {
            (la, lb) = (la.packed(), lb.packed());
        }
        (la, lb)
    }

    /// Puts `A` and `B` of a step where they belong in one CTA.
    fn place(
        &self,
        operands: &Operands,
        (rank, step): (usize, usize),
        (la, lb): &(Layout, Layout),
        image: &mut Vec<u8>,
        tmem: &mut Tmem,
    ) {
        let k = self.k();
        let part = |matrix: &Matrix, rows: std::ops::Range<usize>| Matrix {
            k,
            rows: rows.len(),
            codes: rows
                .flat_map(|row| (0..k).map(move |at| (row, step * k + at)))
                .map(|(row, k)| matrix.code(row, k))
                .collect(),
            ..*matrix
        };
        let a = &operands.a[rank];
        if self.a_tensor {
            self.place_a(a, step, tmem);
        } else {
            la.store(&part(a, 0..a.rows), image);
        }
        let columns = self.n / self.group;
        lb.store(&part(&operands.b, rank * columns..(rank + 1) * columns), image);
    }

    fn expected(&self, operands: &Operands, tmem: &[Tmem]) -> Vec<Tmem> {
        let mut expected = tmem.to_vec();
        for (rank, tmem) in expected.iter_mut().enumerate() {
            for row in 0..self.rows() {
                for column in 0..self.n {
                    let (lane, cell) = self.cell(row, column);
                    if self.disabled.is_some_and(|lanes| lanes[rank] >> lane & 1 != 0) {
                        continue;
                    }
                    let old = tmem.get(lane, cell);
                    let value = self.element(operands, rank, (row, column), old);
                    tmem.put(lane, cell, value);
                }
            }
        }
        expected
    }

    /// One element of `D`.
    fn element(&self, operands: &Operands, rank: usize, at: (usize, usize), old: u32) -> u32 {
        let (a, b) = (&operands.a[rank], &operands.b);
        let sign = if self.negate.0 != self.negate.1 { -1.0 } else { 1.0 };
        (0..self.steps).fold(old, |old, step| {
            let ks = step * self.k()..(step + 1) * self.k();
            let mut sum = dot(a, b, at, ks, |k| match self.scales {
                None => (sign, 1.0),
                Some(Scales { count, ue4m3, .. }) => {
                    let block = k / (self.k() / count);
                    let sfa = operands.sfa[rank][at.0][block];
                    let sfb = operands.sfb[at.1][block];
                    (sign * scale_value(ue4m3, sfa), scale_value(ue4m3, sfb))
                }
            });
            if self.accumulate || step != 0 {
                sum += self.d.value(old) * 0.5f64.powi(self.shift.unwrap_or(0) as i32);
            }
            if self.saturate {
                sum.clamp(f64::from(i32::MIN), f64::from(i32::MAX)) as i32 as u32
            } else {
                self.d.round(sum)
            }
        })
    }
}

/// Operands: `A` and its scales by CTA.
pub struct Operands {
    pub a: Vec<Matrix>,
    pub b: Matrix,
    /// Scales by CTA, row and index.
    pub sfa: Vec<Vec<Vec<u8>>>,
    pub sfb: Vec<Vec<u8>>,
}
