package config

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/berth-node/berth/agent/config/file"
)

// Sources say where settings come from. A flag is stronger than a file of the drop-in directory, of which the last by
// name is the strongest, that than the file, and that than the default.
type Sources struct {
	File   string
	Dir    string
	RunDir string
	Given  *pflag.FlagSet // flags of the command line; what is set there counts
}

// AddFlags adds the flags of the files to fs.
func (s *Sources) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.File, "config", s.File, "KubeletConfiguration and BerthConfiguration, in documents of one file")
	fs.StringVar(&s.Dir, "config-dir", s.Dir,
		"directory of files *"+file.Suffix+" that are put on top of it, in the order of their names")
}

// Loaded is a configuration with where it comes from.
type Loaded struct {
	Config
	// Ignored are fields of the files that do nothing here, or something else, each with what.
	Ignored []string

	files *file.Files
	flags *pflag.FlagSet
}

// Load reads the files and completes the settings.
func (s *Sources) Load() (*Loaded, error) {
	files, err := file.Read(s.File, s.Dir)
	if err != nil {
		return nil, err
	}
	out := &Loaded{Config: Default(), files: files, flags: pflag.NewFlagSet("agent", pflag.ContinueOnError)}
	out.RunDir = s.RunDir
	out.Config.AddFlags(out.flags)
	if s.Given != nil {
		if err := s.copyGiven(out.flags); err != nil {
			return nil, err
		}
	}
	if out.Ignored, err = files.Apply(out.flags); err != nil {
		return nil, err
	}
	if out.RunDir == DefaultRunDir && files.Kubelet == nil && !given(out.flags, shutdownFlags...) {
		out.Shutdown = machineShutdown()
	}
	return out, out.Complete()
}

func (s *Sources) copyGiven(to *pflag.FlagSet) error {
	var errs []error
	s.Given.Visit(func(from *pflag.Flag) {
		f := to.Lookup(from.Name)
		if f == nil {
			return // a flag of the command, not of the settings
		}
		f.Changed = true
		if list, ok := from.Value.(pflag.SliceValue); ok {
			errs = append(errs, f.Value.(pflag.SliceValue).Replace(list.GetSlice())) // the flag is the same
			return
		}
		text := from.Value.String()
		if from.Value.Type() == "stringToString" {
			if text = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"); text == "" {
				return
			}
		}
		errs = append(errs, f.Value.Set(text))
	})
	return errors.Join(errs...)
}

// given says whether a file or the command line has set one of these flags.
func given(flags *pflag.FlagSet, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return flags.Changed(name) })
}

// Warning is the one warning of everything in the files that does nothing here; "" when there is nothing.
func (l *Loaded) Warning() string {
	if len(l.Ignored) == 0 {
		return ""
	}
	return "fields of the configuration that do nothing here, or something else: " + strings.Join(l.Ignored, "; ")
}

// Documents are the settings as files would have them: with all everything, else only what is not the default.
func (l *Loaded) Documents(all bool) (kubelet, berth map[string]any) {
	return l.files.Effective(l.flags, all)
}

// Configz is what /configz shows: the KubeletConfiguration in effect, and berth's own settings beside it.
func (l *Loaded) Configz() any {
	kubelet, berth := l.Documents(true)
	delete(kubelet, "apiVersion")
	delete(kubelet, "kind")
	delete(berth, "apiVersion")
	delete(berth, "kind")
	berth["podNetwork"] = l.podNetwork()
	kubelet["berth"] = berth
	return kubelet
}

// podNetwork is which network pods get, and why.
func (l *Loaded) podNetwork() any {
	if l.Endpoint != "" {
		return PodNetwork{Kind: "of the runtime", Why: "--runtime says whose"}
	}
	return l.PodNetwork(l.Station())
}

// reloadable are the settings that can change while the agent runs.
var reloadable = []string{"log-level", "api-allow"}

// Changes compares with the next configuration: which settings differ that can change now, and which only at the next
// start.
func (l *Loaded) Changes(next *Loaded) (now, later []string) {
	l.flags.VisitAll(func(f *pflag.Flag) {
		switch other := next.flags.Lookup(f.Name); {
		case f.Value.String() == other.Value.String():
		case slices.Contains(reloadable, f.Name):
			now = append(now, "--"+f.Name)
		default:
			later = append(later, "--"+f.Name)
		}
	})
	return now, later
}

// With is what is in effect after the next configuration was read: of it, what can change now.
func (l *Loaded) With(next *Loaded) *Loaded {
	out := *l
	out.flags = pflag.NewFlagSet("agent", pflag.ContinueOnError)
	out.Config.AddFlags(out.flags)
	for _, name := range reloadable {
		from, to := next.flags.Lookup(name), out.flags.Lookup(name)
		if list, ok := from.Value.(pflag.SliceValue); ok {
			// What a flag of this type takes, it has given.
			_ = to.Value.(pflag.SliceValue).Replace(list.GetSlice()) // the flag is the same
			continue
		}
		_ = to.Value.Set(from.Value.String())
	}
	return &out
}
