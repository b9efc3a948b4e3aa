package cli

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/berth-node/berth/agent/draft"
	"github.com/berth-node/berth/internal/atomicfile"
	"github.com/berth-node/berth/internal/commandline"
)

// initCommand is `berth init`.
func initCommand() *cobra.Command {
	p := &draft.Pod{}
	var output string
	var replace bool
	cmd := &cobra.Command{
		Use: "init NAME --image IMAGE [-- ARG...]", Short: "Write a commented manifest to begin with",
		Long: `Print a manifest of a pod with one container, in which comments say what each field is for and what else could be there.
Nothing is started: the pod runs once the manifest is in the node's directory of manifests. 'berth run' does both.`,
		Example: "  berth init web --image docker.io/library/nginx:1.27 --port 8080:80\n" +
			"  berth init web --image docker.io/library/nginx:1.27 --volume /srv/www:/usr/share/nginx/html:ro -o web.yaml\n" +
			"  berth init job --image docker.io/library/busybox:1 --restart Never --command -- sh -c 'date; sleep 10'",
		Args:              func(cmd *cobra.Command, args []string) error { return oneBeforeDash(cmd, args, "NAME") },
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			p.Name, p.Args = args[0], args[1:]
			text, err := p.Manifest()
			if err != nil {
				return commandline.Usage(err)
			}
			if output == "" || output == "-" {
				_, err = cmd.OutOrStdout().Write(text)
				return err
			}
			return writeManifest(output, text, replace)
		},
	}
	cmd.Flags().StringVar(&p.Image, "image", "", "image of the container, such as docker.io/library/nginx:1.27")
	cmd.Flags().StringVarP(&p.Namespace, "namespace", "n", "default", "namespace")
	cmd.Flags().StringVarP(&output, "output", "o", "", "file that the manifest is written to (default it is printed)")
	cmd.Flags().BoolVar(&replace, "replace", false, "write over a file that is there")
	p.AddFlags(cmd.Flags())
	complete(cmd, "restart", "Always", "OnFailure", "Never")
	return cmd
}

// oneBeforeDash wants one argument, and then those after --.
func oneBeforeDash(cmd *cobra.Command, args []string, what string) error {
	before := cmd.ArgsLenAtDash()
	if before < 0 {
		before = len(args)
	}
	switch {
	case before == 0:
		return fmt.Errorf("%s is missing", what)
	case before > 1:
		return fmt.Errorf("%q after %s: arguments of the container come after --", args[1], what)
	}
	return nil
}

// writeManifest makes a file of a manifest, which may hold values that are not everybody's.
func writeManifest(path string, text []byte, replace bool) error {
	if replace {
		return atomicfile.WriteSynced(path, text, 0o600)
	}
	err := createWhole(path, text)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there already: --replace writes over it", path)
	}
	return err
}
