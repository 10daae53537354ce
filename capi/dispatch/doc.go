// Package dispatch is what stands behind the C functions of the library: handles, bridges with their event queues,
// operations, and the streams that carry a command's input and output. It is plain Go, so that the race detector and
// ordinary tests reach all of it; package capi only converts arguments.
//
// A Library owns everything. A host (Python, a C program) opens a Bridge per event loop, submits operations to it and
// drains events from it when its descriptor becomes readable. No exported method waits for anything but a short lock.
package dispatch
