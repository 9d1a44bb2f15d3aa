package config

import (
	"reflect"
	"strings"
)

// Choices are the values that a setting at the top of the configuration can take, by its name; nil where any is possible.
func Choices(setting string) []string {
	fields := reflect.TypeFor[Config]()
	for i := range fields.NumField() {
		tag := fields.Field(i).Tag
		if name, _, _ := strings.Cut(tag.Get("yaml"), ","); name == setting && tag.Get("enum") != "" {
			return strings.Split(tag.Get("enum"), ",")
		}
	}
	return nil
}
