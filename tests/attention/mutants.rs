//! Mutation check of the kernels: each synchronisation, removed or weakened, must be noticed.

use fp4_formats::attention::{
    ATTENTION, AttentionConfig, AttentionParams, NO_WINDOW, Shared, THREADS,
};
use fp4_formats::params::bytes;
use fp4_formats::{Arch, HalfType};
use nvfp4::floats;
use nvfp4_lab::rng::SplitMix64;
use nvfp4_tests::mutation::{self, Effort};
use ptx_emu::GlobalMemory;
use ptx_emu::experiment::{Experiment, Watched};

/// Two heads of keys of one text, whose places so many CTAs share.
fn launch(arch: Arch, config: &AttentionConfig, splits: u32) -> Experiment {
    let &AttentionConfig { name, half, dim } = config;
    let (kv_heads, group, capacity, place) = (2, 3, 300, 290u32);
    let mut random = SplitMix64::new(u64::from(dim));
    let mut memory = GlobalMemory::new();
    let mut halves = |memory: &mut GlobalMemory, name: &str, count: u32| {
        let values = (0..count).map(|_| random.normal());
        memory.alloc_from(name, &floats::encode(half.float(), values)).expect("room")
    };
    let row = (group + 2) * kv_heads * dim;
    let projected = halves(&mut memory, "projected", row);
    let cached = kv_heads * capacity * dim;
    let [keys, values] = ["keys", "values"].map(|name| halves(&mut memory, name, cached));
    let table = capacity * dim / 2;
    let [cosines, sines] = ["cosines", "sines"].map(|name| halves(&mut memory, name, table));
    let place = memory.alloc_from("place", &place.to_le_bytes()).expect("room");
    let out_bytes = u64::from(kv_heads * group * dim * 2);
    let out = memory.alloc("out", out_bytes, 256).expect("room");
    let rows = u64::from(kv_heads * splits * group);
    let sums = memory.alloc("sums", rows * u64::from(dim) * 4, 256).expect("room");
    let of_rows = memory.alloc("rows", rows * 8, 256).expect("room");
    let ready = memory.alloc_from("ready", &[0; 8]).expect("room");
    let params = AttentionParams {
        query: projected,
        key: projected + u64::from(group * kv_heads * dim * 2),
        value: projected + u64::from((group + 1) * kv_heads * dim * 2),
        cosines,
        sines,
        query_norm: 0,
        key_norm: 0,
        sinks: 0,
        place,
        begins: 0,
        keys,
        values,
        out,
        sums,
        rows: of_rows,
        ready,
        row,
        kv_heads,
        group,
        capacity,
        window: NO_WINDOW,
        expected: capacity,
        epsilon: 0.0,
        scale: 0.2,
    };
    let watched = |name: &str, addr: u64, bytes: u64| Watched {
        name: name.to_owned(),
        addr,
        bytes,
        expected: None,
    };
    let outputs = vec![
        watched("out", out, out_bytes),
        watched("keys", keys, u64::from(cached) * 2),
        watched("values", values, u64::from(cached) * 2),
        watched("ready", ready, 8),
    ];
    let gpu = nvfp4_tests::machine(arch);
    let made = (projected, u64::from(row) * 2);
    let earlier = arch
        .dependent_launches()
        .then(|| mutation::earlier(&mut memory, &gpu, made, (out, out_bytes)));
    Experiment {
        ptx: nvfp4_tests::ptx(arch, name),
        gpu,
        entry: name.to_owned(),
        grid: [splits, kv_heads, 1],
        block: [THREADS, 1, 1],
        cluster: None,
        dynamic_shared: Shared::of(group, dim).bytes,
        params: bytes(&params).to_vec(),
        memory,
        outputs,
        earlier,
    }
}

#[test]
fn each_synchronisation_is_needed() {
    for arch in Arch::compiled() {
        // The code of one type is that of the other.
        for config in ATTENTION.iter().filter(|config| config.half == HalfType::Bf16) {
            // Two of six are orders in global memory.
            let launches = [launch(arch, config, 1), launch(arch, config, 2)];
            mutation::check(&launches, Effort { seeds: 16, least: 4, caught: 60 });
        }
    }
}
