//! The driver's functions by the names that `cuGetProcAddress` takes.

use crate::abi::Pointer;
use crate::driver;

/// A function that was found.
#[derive(Clone, Copy)]
pub(crate) struct Found(Pointer);

impl Found {
    /// Its address.
    pub(crate) fn address(self) -> u64 {
        self.0.0 as u64
    }
}

/// Versions of functions whose arguments changed: name, the CUDA version since which the name
/// means it, the function.
const VERSIONS: &[(&str, i32, &str)] = &[
    ("cuCtxCreate", 12050, "cuCtxCreate_v4"),
    ("cuCtxCreate", 11040, "cuCtxCreate_v3"),
    ("cuCtxCreate", 3020, "cuCtxCreate_v2"),
    ("cuGetProcAddress", 12000, "cuGetProcAddress_v2"),
    ("cuGetProcAddress", 11030, "cuGetProcAddress"),
    ("cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"),
    ("cuGraphInstantiate", 11000, "cuGraphInstantiate_v2"),
    ("cuGraphAddKernelNode", 12000, "cuGraphAddKernelNode_v2"),
    ("cuGraphAddKernelNode", 10000, "cuGraphAddKernelNode"),
    ("cuGraphKernelNodeGetParams", 12000, "cuGraphKernelNodeGetParams_v2"),
    ("cuGraphKernelNodeGetParams", 10000, "cuGraphKernelNodeGetParams"),
    ("cuGraphKernelNodeSetParams", 12000, "cuGraphKernelNodeSetParams_v2"),
    ("cuGraphKernelNodeSetParams", 10000, "cuGraphKernelNodeSetParams"),
    ("cuGraphExecKernelNodeSetParams", 12000, "cuGraphExecKernelNodeSetParams_v2"),
    ("cuGraphExecKernelNodeSetParams", 10010, "cuGraphExecKernelNodeSetParams"),
    ("cuGraphExecUpdate", 12000, "cuGraphExecUpdate_v2"),
    ("cuGraphExecUpdate", 10020, "cuGraphExecUpdate"),
    ("cuGraphGetEdges", 12030, "cuGraphGetEdges_v2"),
    ("cuGraphGetEdges", 10000, "cuGraphGetEdges"),
    ("cuGraphNodeGetDependencies", 12030, "cuGraphNodeGetDependencies_v2"),
    ("cuGraphNodeGetDependencies", 10000, "cuGraphNodeGetDependencies"),
    ("cuGraphNodeGetDependentNodes", 12030, "cuGraphNodeGetDependentNodes_v2"),
    ("cuGraphNodeGetDependentNodes", 10000, "cuGraphNodeGetDependentNodes"),
    ("cuGraphAddDependencies", 12030, "cuGraphAddDependencies_v2"),
    ("cuGraphAddDependencies", 10000, "cuGraphAddDependencies"),
    ("cuGraphRemoveDependencies", 12030, "cuGraphRemoveDependencies_v2"),
    ("cuGraphRemoveDependencies", 10000, "cuGraphRemoveDependencies"),
    ("cuGraphAddNode", 12030, "cuGraphAddNode_v2"),
    ("cuGraphAddNode", 12020, "cuGraphAddNode"),
    ("cuDeviceGetUuid", 9020, "cuDeviceGetUuid"),
];

/// The function that a name means to a program for that version of CUDA.
pub(crate) fn find(name: &str, version: i32) -> Option<Found> {
    let exact = |wanted: &str| {
        let found = driver::exports().find(|(exported, _)| *exported == wanted)?;
        Some(Found(found.1))
    };
    if VERSIONS.iter().any(|(versioned, ..)| *versioned == name) {
        let mut versions = VERSIONS.iter().filter(|(versioned, ..)| *versioned == name);
        return exact(versions.find(|(_, since, _)| *since <= version)?.2);
    }
    exact(&format!("{name}_v2")).or_else(|| exact(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_what_the_version_says() {
        let address = |name: &str| {
            let found = driver::exports().find(|(exported, _)| *exported == name);
            Some(found.expect("exported").1.0 as u64)
        };
        let of = |name, version| find(name, version).map(Found::address);
        assert_eq!(of("cuMemAlloc", 13000), address("cuMemAlloc_v2"));
        assert_eq!(of("cuCtxCreate", 13000), address("cuCtxCreate_v4"));
        assert_eq!(of("cuCtxCreate", 12000), address("cuCtxCreate_v3"));
        assert_eq!(of("cuGraphAddNode", 13000), address("cuGraphAddNode_v2"));
        assert_eq!(of("cuGraphAddNode", 12020), address("cuGraphAddNode"));
        assert_eq!(of("cuGraphGetEdges", 12020), address("cuGraphGetEdges"));
        assert_eq!(of("cuLaunchKernel", 13000), address("cuLaunchKernel"));
        assert_eq!(of("cuMulticastCreate", 13000), None);
        assert_eq!(of("cuNothing", 13000), None);
    }
}
