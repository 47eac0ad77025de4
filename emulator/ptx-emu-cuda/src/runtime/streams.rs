//! Streams and events.

use crate::abi::{In, Out, exports};
use crate::errors::{Failure, INVALID_VALUE};
use crate::graphs::parameters::no_edge_data;

/// `cudaEventRecordExternal`
const RECORD_EXTERNAL: u32 = 1;

exports! { runtime;
    query cudaStreamCreate(stream: Out<u64>) |state| {
        stream.set(state.create_stream(0, 0))
    }

    query cudaStreamCreateWithFlags(stream: Out<u64>, flags: u32) |state| {
        stream.set(state.create_stream(flags, 0))
    }

    query cudaStreamCreateWithPriority(stream: Out<u64>, flags: u32, priority: i32) |state| {
        stream.set(state.create_stream(flags, priority))
    }

    call cudaStreamDestroy(stream: u64) |state| {
        state.destroy_stream(stream)
    }

    call cudaStreamSynchronize | cudaStreamSynchronize_ptsz | cudaStreamQuery | cudaStreamQuery_ptsz(
        stream: u64,
    ) |state| {
        state.not_captured(stream)
    }

    call cudaStreamWaitEvent | cudaStreamWaitEvent_ptsz(stream: u64, event: u64, _flags: u32) |state| {
        state.wait_event(stream, event)
    }

    query cudaStreamGetPriority | cudaStreamGetPriority_ptsz(stream: u64, priority: Out<i32>) |state| {
        priority.set(state.stream(stream)?.priority)
    }

    query cudaStreamGetFlags | cudaStreamGetFlags_ptsz(stream: u64, flags: Out<u32>) |state| {
        flags.set(state.stream(stream)?.flags)
    }

    query cudaStreamGetDevice | cudaStreamGetDevice_ptsz(stream: u64, device: Out<i32>) |state| {
        state.stream(stream)?;
        device.set(0)
    }

    query cudaStreamGetId | cudaStreamGetId_ptsz(stream: u64, id: Out<u64>) |state| {
        state.stream(stream)?;
        id.set(stream)
    }

    // Hints.
    query cudaStreamSetAttribute | cudaStreamSetAttribute_ptsz(stream: u64, _attribute: i32, _value: u64) |state| {
        state.stream(stream).map(drop)
    }

    query cudaDeviceGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) |_state| {
        least.set_if_wanted(0);
        greatest.set_if_wanted(-5);
        Ok(())
    }

    call cudaStreamBeginCapture | cudaStreamBeginCapture_ptsz(stream: u64, _mode: i32) |state| {
        state.begin_capture(stream)
    }

    call cudaStreamBeginCaptureToGraph | cudaStreamBeginCaptureToGraph_ptsz(
        stream: u64, graph: u64, after: In<u64>, edges: u64, count: u64, _mode: i32,
    ) |state| {
        no_edge_data(edges)?;
        state.begin_capture_to(stream, graph, after.all(count as usize)?)
    }

    call cudaStreamUpdateCaptureDependencies | cudaStreamUpdateCaptureDependencies_ptsz(
        stream: u64, nodes: In<u64>, edges: u64, count: u64, flags: u32,
    ) |state| {
        no_edge_data(edges)?;
        if flags > 1 {
            return Err(Failure::new(INVALID_VALUE, format!("flags: required 0 or 1, actual {flags}")));
        }
        state.update_capture(stream, nodes.all(count as usize)?, flags == 1)
    }

    call cudaStreamEndCapture | cudaStreamEndCapture_ptsz(stream: u64, graph: Out<u64>) |state| {
        graph.set(state.end_capture(stream)?)
    }

    query cudaStreamIsCapturing | cudaStreamIsCapturing_ptsz(stream: u64, status: Out<i32>) |state| {
        status.set(state.capturing(stream)?.is_some().into())
    }

    query cudaStreamGetCaptureInfo | cudaStreamGetCaptureInfo_ptsz(
        stream: u64, status: Out<i32>, id: Out<u64>, graph: Out<u64>, dependencies: Out<u64>,
        _edges: Out<u64>, count: Out<u64>,
    ) |state| {
        let found = state.capturing(stream)?;
        status.set(found.is_some().into())?;
        let Some(handle) = found else { return Ok(()) };
        id.set_if_wanted(handle);
        graph.set_if_wanted(handle);
        let front = state.front(stream);
        dependencies.set_if_wanted(front.as_ptr() as u64);
        count.set_if_wanted(front.len() as u64);
        Ok(())
    }

    query cudaThreadExchangeStreamCaptureMode(mode: Out<i32>) |_state| {
        // Captures exclude nothing here; the mode before is the default one.
        mode.set(0)
    }

    query cudaEventCreate(event: Out<u64>) |state| {
        event.set(state.create_event(0))
    }

    query cudaEventCreateWithFlags(event: Out<u64>, flags: u32) |state| {
        event.set(state.create_event(flags))
    }

    call cudaEventDestroy(event: u64) |state| {
        state.destroy_event(event)
    }

    call cudaEventRecord | cudaEventRecord_ptsz(event: u64, stream: u64) |state| {
        state.record_event(event, stream)
    }

    call cudaEventRecordWithFlags | cudaEventRecordWithFlags_ptsz(event: u64, stream: u64, flags: u32) |state| {
        if flags & !RECORD_EXTERNAL != 0 {
            return Err(Failure::new(INVALID_VALUE, format!("flags: required 0 or 1, actual {flags}")));
        }
        state.record_event(event, stream)
    }

    call cudaEventQuery | cudaEventSynchronize(event: u64) |state| {
        state.event(event).map(drop)
    }

    call cudaEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) |state| {
        milliseconds.set(state.elapsed([start, end])?)
    }
}
