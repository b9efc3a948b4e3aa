package control

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSecretsAreEncrypted looks for a Secret in all files of the data directory, and takes its key away.
func TestSecretsAreEncrypted(t *testing.T) {
	t.Parallel()
	const canary = "a-password-that-nobody-else-has"
	p := start(t, t.TempDir())
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Data: map[string][]byte{"password": []byte(canary)}}
	if _, err := p.client.CoreV1().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	open := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"a": "what-all-may-see"}}
	if _, err := p.client.CoreV1().ConfigMaps(ns).Create(t.Context(), open, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.stop(t)
	if at := filesWith(t, p.dir, canary); len(at) > 0 {
		t.Errorf("the Secret can be read in %q", at)
	}
	if at := filesWith(t, p.dir, "what-all-may-see"); len(at) == 0 {
		t.Error("no file has the ConfigMap: what is looked for is not found")
	}

	key := filepath.Join(p.dir, "pki", "encryption.yaml")
	good, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", info.Mode(), err)
	}
	// A letter of the key makes another key, that reads nothing and would encrypt what is written from then on.
	at := strings.Index(string(good), `secret: "`) + len(`secret: "`)
	letter := "A"
	if good[at] == 'A' {
		letter = "B"
	}
	for name, text := range map[string]string{
		"empty": "", "torn": string(good[:len(good)/2]), "flipped": strings.Replace(string(good), "secret:", "secrte:", 1),
		"another key": string(good[:at]) + letter + string(good[at+1:]),
	} {
		if err := os.WriteFile(key, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		refuses(t, p.dir, name, key)
		if now, err := os.ReadFile(key); err != nil || string(now) != text {
			t.Errorf("%s: the file was changed", name)
		}
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	refuses(t, p.dir, "gone", key)
	if err := os.WriteFile(key, good, 0o600); err != nil {
		t.Fatal(err)
	}
	again := start(t, p.dir)
	if s, err := again.client.CoreV1().Secrets(ns).Get(t.Context(), "s", metav1.GetOptions{}); err != nil || string(s.Data["password"]) != canary {
		t.Errorf("after a restart: %v, %v", s, err)
	}
}

// refuses starts the control plane, which ends by itself and names the file.
func refuses(t *testing.T, dir, what, file string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, "serve", "--data-dir", dir, "--bind", "127.0.0.1", "--port", "0")
	out, err := cmd.CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte(file)) {
		t.Errorf("%s: %v\n%s", what, err, out)
	}
}

// filesWith are the files below a directory that have a text in them.
func filesWith(t *testing.T, dir, text string) []string {
	t.Helper()
	var found []string
	if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(text)) {
			found = append(found, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return found
}
