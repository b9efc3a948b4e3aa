package csi

import (
	"sort"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// TokensKey is the key of a volume's context that has the tokens of the pod's service account: the one secret that is
// in no field of secrets.
const TokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

// Secrets are the content of a Secret as the protocol has it, which knows of strings only; nil where there is none.
func Secrets(content map[string][]byte) map[string]string {
	if content == nil {
		return nil
	}
	out := make(map[string]string, len(content))
	for k, v := range content {
		out[k] = string(v)
	}
	return out
}

const stripped = "***stripped***"

// Stripped is a message as it may be logged: without what its fields of secrets have, by their mark in the
// specification (csi_secret), and without mount flags, which may be secret, too.
type Stripped struct{ Message any }

func (s Stripped) String() string {
	m, ok := s.Message.(proto.Message)
	if !ok || m == nil {
		return ""
	}
	m = proto.Clone(m)
	eachSecret(m.ProtoReflect(), func(in protoreflect.Map, key protoreflect.MapKey) {
		in.Set(key, protoreflect.ValueOfString(stripped))
	})
	eachMount(m.ProtoReflect(), func(v *spec.VolumeCapability_MountVolume) {
		if len(v.GetMountFlags()) > 0 {
			v.MountFlags = []string{stripped}
		}
	})
	return prototext.MarshalOptions{}.Format(m)
}

// secretsOf are the values of a message's secrets that are long enough to be told from other text, the longest first.
func secretsOf(message any) []string {
	m, ok := message.(proto.Message)
	if !ok {
		return nil
	}
	var out []string
	eachSecret(m.ProtoReflect(), func(in protoreflect.Map, key protoreflect.MapKey) {
		if v := in.Get(key).String(); len(v) >= 4 {
			out = append(out, v)
		}
	})
	sort.Slice(out, func(i, j int) bool { return len(out[i]) > len(out[j]) })
	return out
}

// scrub takes the secrets of a request out of what the driver says about it.
func scrub(text string, request any) string {
	for _, s := range secretsOf(request) {
		text = strings.ReplaceAll(text, s, stripped)
	}
	return text
}

// eachSecret calls fn for each value of a map of secrets, in messages within the message too.
func eachSecret(m protoreflect.Message, fn func(in protoreflect.Map, key protoreflect.MapKey)) {
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap() && field.MapValue().Kind() == protoreflect.StringKind:
			secret := isSecret(field)
			v.Map().Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
				if secret || key.String() == TokensKey {
					fn(v.Map(), key)
				}
				return true
			})
		case field.IsMap() || field.Kind() != protoreflect.MessageKind:
		case field.IsList():
			for i := range v.List().Len() {
				eachSecret(v.List().Get(i).Message(), fn)
			}
		default:
			eachSecret(v.Message(), fn)
		}
		return true
	})
}

// eachMount calls fn for each way a message has a volume be mounted.
func eachMount(m protoreflect.Message, fn func(*spec.VolumeCapability_MountVolume)) {
	if v, ok := m.Interface().(*spec.VolumeCapability_MountVolume); ok {
		fn(v)
		return
	}
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap() || field.Kind() != protoreflect.MessageKind:
		case field.IsList():
			for i := range v.List().Len() {
				eachMount(v.List().Get(i).Message(), fn)
			}
		default:
			eachMount(v.Message(), fn)
		}
		return true
	})
}

func isSecret(field protoreflect.FieldDescriptor) bool {
	options, ok := field.Options().(*descriptorpb.FieldOptions)
	if !ok || options == nil {
		return false
	}
	is, _ := proto.GetExtension(options, spec.E_CsiSecret).(bool)
	return is
}
