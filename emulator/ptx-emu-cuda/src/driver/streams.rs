//! Streams and events.

use crate::abi::{Out, exports};

exports! { driver;
    query cuStreamCreate(stream: Out<u64>, flags: u32) |state| {
        stream.set(state.create_stream(flags, 0))
    }

    query cuStreamCreateWithPriority(stream: Out<u64>, flags: u32, priority: i32) |state| {
        stream.set(state.create_stream(flags, priority))
    }

    call cuStreamDestroy_v2(stream: u64) |state| {
        state.destroy_stream(stream)
    }

    call cuStreamSynchronize | cuStreamSynchronize_ptsz | cuStreamQuery | cuStreamQuery_ptsz(stream: u64) |state| {
        state.not_captured(stream)
    }

    call cuStreamWaitEvent | cuStreamWaitEvent_ptsz(stream: u64, event: u64, _flags: u32) |state| {
        state.wait_event(stream, event)
    }

    query cuStreamGetPriority | cuStreamGetPriority_ptsz(stream: u64, priority: Out<i32>) |state| {
        priority.set(state.stream(stream)?.priority)
    }

    query cuStreamGetFlags | cuStreamGetFlags_ptsz(stream: u64, flags: Out<u32>) |state| {
        flags.set(state.stream(stream)?.flags)
    }

    query cuStreamGetCtx | cuStreamGetCtx_ptsz(stream: u64, context: Out<u64>) |state| {
        state.stream(stream)?;
        context.set(crate::state::PRIMARY)
    }

    call cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz(stream: u64, _mode: i32) |state| {
        state.begin_capture(stream)
    }

    call cuStreamEndCapture | cuStreamEndCapture_ptsz(stream: u64, graph: Out<u64>) |state| {
        graph.set(state.end_capture(stream)?)
    }

    query cuStreamIsCapturing | cuStreamIsCapturing_ptsz(stream: u64, status: Out<i32>) |state| {
        status.set(state.capturing(stream)?.is_some().into())
    }

    query cuThreadExchangeStreamCaptureMode(mode: Out<i32>) |_state| {
        mode.set(0)
    }

    query cuEventCreate(event: Out<u64>, flags: u32) |state| {
        event.set(state.create_event(flags))
    }

    call cuEventDestroy_v2(event: u64) |state| {
        state.destroy_event(event)
    }

    call cuEventRecord | cuEventRecord_ptsz(event: u64, stream: u64) |state| {
        state.record_event(event, stream)
    }

    call cuEventQuery | cuEventSynchronize(event: u64) |state| {
        state.event(event).map(drop)
    }

    call cuEventElapsedTime | cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) |state| {
        milliseconds.set(state.elapsed([start, end])?)
    }
}
