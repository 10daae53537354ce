// Package mem is a provider without processes: a sandbox is a map of files and a handful of commands, all in memory. It
// is for tests and benchmarks of what lies above a provider; it isolates nothing and runs nothing.
//
// A command line is one or more commands joined by ";" or "&&". Words are split at spaces; single and double quotes
// group. A command may end in ">&2". There are:
//
//	echo WORDS...      the words and a newline
//	cat [PATHS...]     files, or the input
//	wc                 how many bytes the input has
//	yes BYTES [TEXT]   TEXT and newlines, exactly BYTES of them
//	spin SECONDS       keeps a core busy
//	sleep SECONDS
//	env [NAME]         the environment, or one variable
//	pwd, whoami, true, false, exit N
package mem
