// Package config is the typed configuration of an application: defaults, overridden by a YAML file, by the environment
// and by flags, in this order. It is plain data and imports nothing of ours.
//
// It is strict. A name that is not known, a name given twice, a value that makes no sense and a
// misspelt variable are errors that say where they stand and what was probably meant; all
// of them are reported at once. What adapters and plugins configure crosses as a Section, which the
// owner decodes by the same rules. Secrets are never printed.
package config
