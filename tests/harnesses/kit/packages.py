"""The packages that harnesses come in."""

from tests.harnesses.kit.places import NodePackage, PythonPackages

CODEX = NodePackage("@openai/codex", "0.171.0", "codex")
CLAUDE_CODE = NodePackage(
    "@anthropic-ai/claude-code", "2.1.332", "claude", "@anthropic-ai/claude-code-linux-x64/claude"
)
OPENCODE = NodePackage("opencode-ai", "1.18.33", "opencode", "opencode-linux-x64/bin/opencode")
QWEN_CODE = NodePackage("@qwen-code/qwen-code", "0.24.4", "qwen")
CLINE = NodePackage("cline", "3.0.65", "cline")
PI = NodePackage("@mariozechner/pi-coding-agent", "0.73.1", "pi")

SDKS = PythonPackages("sdks")
MINI_SWE_AGENT = PythonPackages("mini-swe-agent")
AIDER = PythonPackages("aider")
OPENHANDS = PythonPackages("openhands", needs=(3, 12))
