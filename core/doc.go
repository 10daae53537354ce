// Package core is the domain of the project: what a sandbox is asked to be
// (Spec), what is run in it (ExecRequest, ExecResult), how backends are plugged
// in (Provider, Instance and the optional capabilities) and the life of one
// sandbox (Sandbox). It imports only the standard library; backends, the C ABI
// and the Python package are built on top of it.
package core
