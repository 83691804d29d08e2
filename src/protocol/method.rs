//! Methods that the gateway treats specially; all others pass through.

/// A method, as far as the gateway distinguishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Method {
    /// `initialize`
    Initialize,
    /// `ping`
    Ping,
    /// `tools/call`
    ToolsCall,
    /// `tools/list`
    ToolsList,
    /// `prompts/get`
    PromptsGet,
    /// `prompts/list`
    PromptsList,
    /// `resources/read`
    ResourcesRead,
    /// `resources/list`
    ResourcesList,
    /// `resources/templates/list`
    TemplatesList,
    /// `completion/complete`
    Complete,
    /// `tasks/result`
    TasksResult,
    /// Any other method `tasks/…`
    Tasks,
    /// `logging/setLevel`
    SetLevel,
    /// `resources/subscribe`
    Subscribe,
    /// `resources/unsubscribe`
    Unsubscribe,
    /// `notifications/initialized`
    Initialized,
    /// `notifications/cancelled`
    Cancelled,
    /// `notifications/progress`
    Progress,
    /// `notifications/message`
    Log,
    /// `notifications/resources/updated`
    Updated,
    /// `notifications/…/list_changed`, of either side
    ListChanged,
    /// Any other method, or none.
    Other,
}

impl Method {
    /// The method with this name.
    pub(crate) fn of(name: &str) -> Self {
        match name {
            "initialize" => Self::Initialize,
            "ping" => Self::Ping,
            "tools/call" => Self::ToolsCall,
            "tools/list" => Self::ToolsList,
            "prompts/get" => Self::PromptsGet,
            "prompts/list" => Self::PromptsList,
            "resources/read" => Self::ResourcesRead,
            "resources/list" => Self::ResourcesList,
            "resources/templates/list" => Self::TemplatesList,
            "completion/complete" => Self::Complete,
            "tasks/result" => Self::TasksResult,
            "logging/setLevel" => Self::SetLevel,
            "resources/subscribe" => Self::Subscribe,
            "resources/unsubscribe" => Self::Unsubscribe,
            "notifications/initialized" => Self::Initialized,
            "notifications/cancelled" => Self::Cancelled,
            "notifications/progress" => Self::Progress,
            "notifications/message" => Self::Log,
            "notifications/resources/updated" => Self::Updated,
            "notifications/tools/list_changed"
            | "notifications/prompts/list_changed"
            | "notifications/resources/list_changed"
            | "notifications/roots/list_changed" => Self::ListChanged,
            name if name.starts_with("tasks/") => Self::Tasks,
            _ => Self::Other,
        }
    }

    /// Whether the method is always a request.
    pub(crate) const fn is_request(self) -> bool {
        !self.is_notification() && !matches!(self, Self::Other)
    }

    /// Whether the method is always a notification.
    pub(crate) const fn is_notification(self) -> bool {
        matches!(
            self,
            Self::Initialized
                | Self::Cancelled
                | Self::Progress
                | Self::Log
                | Self::Updated
                | Self::ListChanged
        )
    }
}
