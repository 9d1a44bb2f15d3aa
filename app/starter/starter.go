// Package starter writes a new project: a main that links what it uses, one plugin with its tables, a test that proves the
// plugin at every step, and a configuration.
package starter

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
)

//go:embed all:files
var files embed.FS

// ErrNotEmpty is returned where the folder has something in it already.
var ErrNotEmpty = errors.New("the folder is not empty")

// Project is what is written.
type Project struct {
	// Module is the Go module's path, such as "example.com/shop". Its last element names the service.
	Module string
	// Plugin is the plugin's name and its package's: lower case letters and digits.
	Plugin string
	// Version is the version of Oncemill that is required; where empty, "go mod tidy" takes the newest.
	Version string
	// Checkout, where not empty, is a folder with Oncemill's source that is used in place of a version.
	Checkout string
}

var (
	moduleForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._~/-]*$`)
	pluginForm = regexp.MustCompile(`^[a-z][a-z0-9]*$`)
)

// Write writes the project into dir, which is made where it is missing and must be empty, and returns the names of its files.
func (p Project) Write(dir string) ([]string, error) {
	switch {
	case !moduleForm.MatchString(p.Module) || strings.HasSuffix(p.Module, "/"):
		return nil, fmt.Errorf("module %q is not a module path such as example.com/shop", p.Module)
	case !pluginForm.MatchString(p.Plugin) || p.Plugin == "main":
		return nil, fmt.Errorf("plugin %q is not a name of lower case letters and digits that a Go package can have", p.Plugin)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	if len(entries) > 0 {
		return nil, fmt.Errorf("%s: %w: name another one", dir, ErrNotEmpty)
	}
	var written []string
	err = fs.WalkDir(files, "files", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		target := p.target(name)
		written = append(written, target)
		return p.file(name, filepath.Join(dir, filepath.FromSlash(target)))
	})
	return written, err
}

// target is where a template's file belongs in the project.
func (p Project) target(name string) string {
	name = strings.TrimSuffix(strings.TrimPrefix(name, "files/"), ".tmpl")
	if rest, ok := strings.CutPrefix(name, "plugin/"); ok {
		name = path.Join(p.Plugin, strings.Replace(rest, "plugin", p.Plugin, 1))
	}
	return name
}

func (p Project) file(name, target string) error {
	text, err := files.ReadFile(name)
	if err != nil {
		return err
	}
	tmpl, err := template.New(name).Parse(string(text))
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := tmpl.Execute(&out, p); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	return os.WriteFile(target, out.Bytes(), 0o644)
}

// Service is the name of the service: the last element of the module's path that is not a major version.
func (p Project) Service() string {
	name := path.Base(p.Module)
	if regexp.MustCompile(`^v[0-9]+$`).MatchString(name) {
		name = path.Base(path.Dir(p.Module))
	}
	return strings.ToLower(strings.NewReplacer(".", "-", "~", "-", "_", "-").Replace(name))
}
