//! Parts of weights for several devices.

use fp4_formats::{BlockFormat, Mxfp4, Nvfp4, ScaleLayout};
use nvfp4::Result;
use nvfp4::parallel::{Cut, Shard};
use nvfp4::tensor::{BlockScaled, Dims};
use nvfp4_lab::generate::Generator;
use nvfp4_lab::rng::SplitMix64;

fn random<F: BlockFormat>([batch, rows, k]: [usize; 3], layout: ScaleLayout) -> BlockScaled<F> {
    let dims = Dims::new(batch, rows, k).expect("dims");
    let mut rng = SplitMix64::new(7);
    Generator::FullRange.blocks("w", dims, layout, &mut rng).expect("whole blocks")
}

/// Values of all parts, put together by index, are those of the whole.
fn check<F: BlockFormat>(sizes: [usize; 3], layout: ScaleLayout, ranks: usize) {
    let whole = random::<F>(sizes, layout);
    let values = whole.dequantize().expect("small");
    for (axis, cut) in [(0, Cut::Experts), (1, Cut::Rows), (2, Cut::Columns)] {
        let mut start = 0;
        for rank in 0..ranks {
            let part = whole.part(cut, Shard::new(rank, ranks).expect("valid")).expect("whole");
            let dims = part.dims();
            let own = [dims.batch(), dims.rows(), dims.cols()];
            for (index, value) in part.dequantize().expect("small").into_iter().enumerate() {
                let mut at = [index / own[2] / own[1], index / own[2] % own[1], index % own[2]];
                at[axis] += start;
                let expected = values[(at[0] * sizes[1] + at[1]) * sizes[2] + at[2]];
                assert_eq!(value.to_bits(), expected.to_bits(), "{cut:?} {rank} {at:?}");
            }
            start += own[axis];
        }
        assert_eq!(start, sizes[axis], "{cut:?}");
    }
}

#[test]
fn parts_make_up_the_whole() {
    check::<Nvfp4>([3, 10, 96], ScaleLayout::Linear, 2);
    check::<Mxfp4>([2, 6, 192], ScaleLayout::Linear, 2);
    check::<Nvfp4>([4, 256, 256], ScaleLayout::Blocked128x4, 2);
    check::<Mxfp4>([3, 384, 384], ScaleLayout::Blocked128x4, 3);
}

#[test]
fn what_cannot_be_cut() {
    let part = |rank, ranks| Shard::new(rank, ranks).expect("valid");
    let refused = |result: Result<BlockScaled<Nvfp4>>, text: &str| {
        assert_eq!(result.expect_err("refused").to_string(), text);
    };
    let linear = random::<Nvfp4>([2, 10, 96], ScaleLayout::Linear);
    let text = "N of `w` must be a multiple of 4, 4 parts, but is 10";
    refused(linear.part(Cut::Rows, part(0, 4)), text);
    let text = "columns of `w` must be cut at multiples of 16, not within a block, but is 0..24";
    refused(linear.cut(Cut::Columns, 0..24), text);
    let text = "rows of `w` must be some of 10, but is 8..11";
    refused(linear.cut(Cut::Rows, 8..11), text);
    let text = "experts must be at least 3, the number of parts, but is 2";
    refused(linear.part(Cut::Experts, part(0, 3)), text);
    let tiles = random::<Nvfp4>([1, 200, 128], ScaleLayout::Blocked128x4);
    let text = "rows of `w` must be cut at multiples of 128, not within a tile of 128x4 scales, \
                but is 0..100";
    refused(tiles.part(Cut::Rows, part(0, 2)), text);
    tiles.cut(Cut::Rows, 128..200).expect("whole tiles, up to the end");
    let text = "columns of `w` must be cut at multiples of 64, not within a tile of 128x4 scales, \
                but is 0..32";
    refused(tiles.part(Cut::Columns, part(0, 4)), text);
    let error = Shard::new(2, 2).expect_err("refused").to_string();
    assert_eq!(error, "rank must be below 2, the number of parts, but is 2");
}

#[test]
fn experts_are_divided_about_evenly() {
    let ranges = (0..3).map(|rank| Shard::new(rank, 3).and_then(|part| part.experts(8)));
    let ranges: Vec<_> = ranges.map(|range| range.expect("enough")).collect();
    assert_eq!(ranges, [0..3, 3..6, 6..8]);
}
