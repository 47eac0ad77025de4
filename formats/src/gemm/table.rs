//! The tables of kernels: each is tiles by pairs of types.
//!
//! `sm80_gemm_configs!`, `sm90a_gemm_configs!`, `sm100a_gemm_configs!` and `sm120f_gemm_configs!` hold the tables. A row is a tile, what is
//! decided for it, and which [`Problems`] it has kernels for; rows stand in blocks, each for some pairs of types.
//! The table makes the configurations, the entry points in `kernels-gpu`, and their names. [`kernels`] has what
//! tables of all tensor cores say alike.

use super::{Operands, sm80, sm90, sm100, sm120};
use crate::arch::TensorFamily;

/// A kernel, without the decisions that only kernels for its tensor cores have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// Entry name in the PTX module.
    pub name: &'static str,
    /// Formats of weights and activations.
    pub operands: Operands,
    /// The sizes that the problems of a launch share.
    pub problems: Problems,
    /// Extents of a CTA's tile: rows of the weights and tokens; on sm_100a, rows of `X` and of `Y`.
    pub tile: [u32; 2],
}

/// All kernels of products for these tensor cores: of dense, of grouped, then of mixed products.
pub const fn kernels(tensor: TensorFamily) -> &'static [Kernel] {
    match tensor {
        TensorFamily::MmaSync => &sm80::config::KERNELS,
        TensorFamily::MmaSyncScaled => &sm120::KERNELS,
        TensorFamily::Wgmma => &sm90::config::KERNELS,
        TensorFamily::Tcgen05 => &sm100::config::KERNELS,
    }
}

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

/// Defines the configurations of a table, all and by their problems: `$rows!` is the table, and `$config!` makes a
/// configuration of a row. The first argument is a dollar sign, for the macros that this one defines.
macro_rules! configurations {
    ($d:tt $rows:ident, $config:ident, $Config:ident, $arch:literal) => {
        /// All configurations, in the table's order.
        const TABLE: [$Config; {
            let mut kernels = 0;
            macro_rules! count {
                ($d($d kernel:tt)+) => {
                    kernels += 1;
                };
            }
            $rows!(count);
            kernels
        }] = {
            let (mut found, mut at) = ([None; _], 0);
            macro_rules! put {
                ($d($d kernel:tt)+) => {
                    found[at] = Some($config!($d($d kernel)+));
                    at += 1;
                };
            }
            $rows!(put);
            assert!(at == found.len());
            $crate::gemm::table::all_of(found)
        };

        /// Counts the kernels for these problems.
        const fn count(problems: Problems) -> usize {
            let (mut found, mut i) = (0, 0);
            while i < TABLE.len() {
                if TABLE[i].problems.is(problems) {
                    found += 1;
                }
                i += 1;
            }
            found
        }

        /// The configurations for these problems, `N` as [`count`] says.
        const fn select<const N: usize>(problems: Problems) -> [$Config; N] {
            let (mut selected, mut found, mut i) = ([None; N], 0, 0);
            while i < TABLE.len() {
                if TABLE[i].problems.is(problems) {
                    selected[found] = Some(TABLE[i]);
                    found += 1;
                }
                i += 1;
            }
            $crate::gemm::table::all_of(selected)
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

        /// The kernels of [`all`], in that order.
        pub(in crate::gemm) static KERNELS: [$crate::gemm::table::Kernel; TABLE.len()] = {
            let tables: [&[$Config]; 3] = [&CONFIGS, &GROUPED, &MIXED];
            let (mut kernels, mut at, mut table) = ([None; _], 0, 0);
            while table < tables.len() {
                let mut i = 0;
                while i < tables[table].len() {
                    let config = &tables[table][i];
                    kernels[at] = Some($crate::gemm::table::Kernel {
                        name: config.name,
                        operands: config.operands(),
                        problems: config.problems,
                        tile: config.extents(),
                    });
                    (at, i) = (at + 1, i + 1);
                }
                table += 1;
            }
            $crate::gemm::table::all_of(kernels)
        };

        #[doc = concat!("Returns the pairs of formats that ", $arch, " has kernels for.")]
        pub fn operands() -> impl Iterator<Item = Operands> {
            Operands::ALL.into_iter().filter(|operands| all().any(|c| c.operands() == *operands))
        }

        /// Returns the configuration of a kernel. For constants: panics if there is none of this name.
        pub const fn named(name: &str) -> $Config {
            let mut i = 0;
            while i < TABLE.len() {
                if $crate::gemm::table::same(TABLE[i].name, name) {
                    return TABLE[i];
                }
                i += 1;
            }
            panic!("no kernel of this name")
        }

        impl $Config {
            /// Whether problems have token counts of their own.
            #[inline(always)]
            pub const fn is_grouped(&self) -> bool {
                self.problems.have_own_tokens()
            }

            /// Bytes of the table of a grouped product's problems.
            #[inline(always)]
            pub const fn table_bytes(&self) -> u32 {
                if self.is_grouped() { $crate::gemm::groups::TABLE_BYTES } else { 0 }
            }
        }
    };
}
pub(super) use configurations;

/// The values of an array that has one at each place.
pub(super) const fn all_of<T: Copy, const N: usize>(found: [Option<T>; N]) -> [T; N] {
    assert!(N > 0);
    let Some(first) = found[0] else { panic!("no first value") };
    let (mut all, mut at) = ([first; N], 1);
    while at < N {
        all[at] = match found[at] {
            Some(value) => value,
            None => panic!("a place without a value"),
        };
        at += 1;
    }
    all
}

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
