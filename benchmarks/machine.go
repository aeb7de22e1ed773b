package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
)

// A machine describes the machine of a run, without anything that identifies it.
type machine struct {
	CPU    string
	Cores  int // of the system
	Procs  int // GOMAXPROCS
	OS     string
	Kernel string
	Clock  string // the clock source of the system
	Go     string
}

func thisMachine() machine {
	m := machine{
		CPU:    field("/proc/cpuinfo", "model name", ":"),
		Cores:  runtime.NumCPU(),
		Procs:  runtime.GOMAXPROCS(0),
		OS:     strings.Trim(field("/etc/os-release", "PRETTY_NAME", "="), `"`),
		Kernel: contents("/proc/sys/kernel/osrelease"),
		Clock:  contents("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
		Go:     fmt.Sprintf("%s %s/%s", runtime.Version(), runtime.GOOS, runtime.GOARCH),
	}
	if m.CPU == "" {
		m.CPU = runtime.GOARCH + ", model unknown"
	}
	if m.OS == "" {
		m.OS = runtime.GOOS
	}
	return m
}

// contents returns the contents of a small file, or "" if it does not exist, as on systems
// other than Linux.
func contents(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// field returns the value of the first line of a file that begins with name.
func field(path, name, separator string) string {
	for line := range strings.Lines(contents(path)) {
		if k, v, ok := strings.Cut(line, separator); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// versions returns the versions of the modules in this program, by path.
func versions() map[string]string {
	v := make(map[string]string)
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			v[dep.Path] = dep.Version
		}
	}
	return v
}
