package credential

import (
	"encoding/base64"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func pullSecret(name string, kind corev1.SecretType, key, data string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: kind, Data: map[string][]byte{key: []byte(data)}}
}

func TestFromSecrets(t *testing.T) {
	both := base64.StdEncoding.EncodeToString([]byte("user:pass:word"))
	modern := pullSecret("m", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey, `{"auths": {
		"https://index.docker.io/v1/": {"auth": "`+both+`"},
		"registry.example:5000": {"username": "general", "password": "g"},
		"registry.example:5000/team": {"username": "special", "password": "s"},
		"*.example.org": {"username": "glob", "password": "x"},
		"broken.example": {"auth": "?hunter2?"}}}`)
	old := pullSecret("o", corev1.SecretTypeDockercfg, corev1.DockerConfigKey, `{"old.example": {"username": "o", "password": "p"}}`)
	for _, c := range []struct{ image, want string }{
		{"busybox", "user:pass:word"},
		{"docker.io/library/busybox:1", "user:pass:word"},
		{"registry.example:5000/team/app", "special:s general:g"},
		{"registry.example:5000/other", "general:g"},
		{"registry.example/other", ""},
		{"a.example.org/x", "glob:x"},
		{"old.example/x@sha256:" + strings.Repeat("0", 64), "o:p"},
	} {
		auths, err := FromSecrets(c.image, []*corev1.Secret{modern, old})
		if err != nil {
			t.Errorf("%s: %v", c.image, err)
		}
		var got []string
		for _, a := range auths {
			got = append(got, a.Auth.GetUsername()+":"+a.Auth.GetPassword())
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %q, want %q", c.image, s, c.want)
		}
	}
	for _, c := range []struct {
		secret *corev1.Secret
		want   string
	}{
		{pullSecret("x", corev1.SecretTypeOpaque, "a", "hunter2"), `secret "x": type "Opaque": must be kubernetes.io/dockerconfigjson or`},
		{pullSecret("x", corev1.SecretTypeDockercfg, corev1.DockerConfigKey, "hunter2"), `.dockercfg is no configuration of docker`},
		{modern, `secret "m": credentials of broken.example: auth is not base64`},
	} {
		auths, err := FromSecrets("broken.example/x", []*corev1.Secret{c.secret})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") || len(auths) > 0 {
			t.Errorf("%v and error %v, want %s", auths, err, c.want)
		}
	}
}
