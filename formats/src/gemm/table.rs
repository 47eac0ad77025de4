//! The tables of kernels: each is tiles by pairs of types.
//!
//! `sm90a_gemm_configs!` and `sm100a_gemm_configs!` hold the tables. A row is a tile, what is decided for it,
//! and which [`Problems`] it has kernels for; rows stand in blocks, each for some pairs of types. The table
//! makes the configurations, the entry points in `kernels-gpu`, and their names.

/// The sizes that the problems of a launch share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Problems {
    /// All sizes: one product, or a batch.
    Uniform,
    /// N and K: a grouped product ([`groups`](super::groups)).
    Grouped,
    /// Types alone: a mixed product ([`mixed`](super::mixed)).
    Mixed,
}

impl Problems {
    /// Returns whether it is `other`, in a constant.
    pub const fn is(self, other: Self) -> bool {
        self as u32 == other as u32
    }

    /// Returns whether problems have their own token counts.
    pub const fn have_own_tokens(self) -> bool {
        match self {
            Self::Uniform => false,
            Self::Grouped | Self::Mixed => true,
        }
    }
}

/// Calls `$with!` for each kernel of a table, in the table's order: block by block, in each for one pair of
/// types after the other. Its arguments are
///
/// ```text
/// [the parts of the kernel's name] types problems (tile) (decisions)
/// ```
#[macro_export]
macro_rules! gemm_kernels {
    ($with:ident $family:ident: $([$($types:ident)+] $rows:tt)+) => {
        $($($crate::gemm_kernels! { @types $with $family $types $rows })+)+
    };
    (@types $with:ident $family:ident $types:ident { $($tile:tt $decided:tt $($problems:ident)+;)+ }) => {
        $($($crate::gemm_kernels! { @name $with $family $types $problems $tile $decided })+)+
    };
    (@name $with:ident $family:ident $types:ident uniform ($($tile:tt)+) $decided:tt) => {
        $with! { [$family _ $types _ $($tile)+] $types uniform ($($tile)+) $decided }
    };
    (@name $with:ident $family:ident $types:ident grouped ($($tile:tt)+) $decided:tt) => {
        $with! { [$family _ $types _ $($tile)+ _grouped] $types grouped ($($tile)+) $decided }
    };
    (@name $with:ident $family:ident $types:ident mixed ($($tile:tt)+) $decided:tt) => {
        $with! { [$family _ $types _ $($tile)+ _mixed] $types mixed ($($tile)+) $decided }
    };
}

/// The [`Problems`] that a table names so.
macro_rules! problems {
    (uniform) => {
        $crate::gemm::Problems::Uniform
    };
    (grouped) => {
        $crate::gemm::Problems::Grouped
    };
    (mixed) => {
        $crate::gemm::Problems::Mixed
    };
}
pub(super) use problems;

/// Defines the configurations of a table by their problems, of `KERNELS`: those of all kernels.
macro_rules! by_problems {
    ($Config:ty, $arch:literal) => {
        /// Counts the kernels for these problems.
        const fn count(problems: Problems) -> usize {
            let (mut found, mut i) = (0, 0);
            while i < KERNELS.len() {
                if KERNELS[i].problems.is(problems) {
                    found += 1;
                }
                i += 1;
            }
            found
        }

        /// The configurations for these problems, `N` as [`count`] says.
        const fn select<const N: usize>(problems: Problems) -> [$Config; N] {
            let mut selected = [KERNELS[0]; N];
            let (mut found, mut i) = (0, 0);
            while i < KERNELS.len() {
                if KERNELS[i].problems.is(problems) {
                    selected[found] = KERNELS[i];
                    found += 1;
                }
                i += 1;
            }
            assert!(found == N);
            selected
        }

        #[doc = concat!("All configurations of dense and batched products; the PTX of ", $arch, " has a kernel for each.")]
        pub const CONFIGS: [$Config; count(Problems::Uniform)] = select(Problems::Uniform);

        #[doc = concat!("All configurations of grouped products; the PTX of ", $arch, " has a kernel for each.")]
        pub const GROUPED: [$Config; count(Problems::Grouped)] = select(Problems::Grouped);

        #[doc = concat!("All configurations of mixed products; the PTX of ", $arch, " has a kernel for each.")]
        pub const MIXED: [$Config; count(Problems::Mixed)] = select(Problems::Mixed);

        #[doc = concat!("All configurations of ", $arch, ": of dense, of grouped, then of mixed products.")]
        pub fn all() -> impl Iterator<Item = &'static $Config> + Clone {
            CONFIGS.iter().chain(&GROUPED).chain(&MIXED)
        }

        #[doc = concat!("Returns the pairs of formats that ", $arch, " has kernels for.")]
        pub fn operands() -> impl Iterator<Item = Operands> {
            Operands::ALL.into_iter().filter(|operands| all().any(|c| c.operands() == *operands))
        }

        /// Returns the configuration of a kernel. For constants: panics if there is none of this name.
        pub const fn named(name: &str) -> $Config {
            let mut i = 0;
            while i < KERNELS.len() {
                if $crate::gemm::table::same(KERNELS[i].name, name) {
                    return KERNELS[i];
                }
                i += 1;
            }
            panic!("no kernel of this name")
        }
    };
}
pub(super) use by_problems;

/// Compares strings in a constant expression.
pub(super) const fn same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut same = a.len() == b.len();
    let mut i = 0;
    while same && i < a.len() {
        same = a[i] == b[i];
        i += 1;
    }
    same
}
